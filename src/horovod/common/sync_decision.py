# SPDX-License-Identifier: Apache-2.0
"""Decision which state an elastic training continues with, computed on all ranks from all ranks' reports.

Rank 0 sends the state to all ranks. So rank 0 must have it, or have loaded a checkpoint, or be sure that there is none.
Otherwise the training would start again from the beginning and lose its progress. The functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from horovod.common.lineage import CommitId, SeenFile, newest_of

_REMEDY = "Use a directory that all hosts see"


@dataclass(frozen=True)
class LoadAttempt:
    """Result of loading a checkpoint.

    Args:
        commit: The commit that was loaded, or a new lineage if training starts from the beginning. None after an error.
        folder: The folder of the checkpoints. Empty if the program uses none.
        file: The file that was loaded. Empty if there was none to load.
        newest: The newest file in the folder, which may be damaged.
        error: Why no file could be loaded although training must not start from the beginning.
    """

    commit: CommitId | None
    folder: str = ""
    file: str = ""
    newest: SeenFile | None = None
    error: str = ""


@dataclass(frozen=True)
class SyncReport:
    """Report of one rank before the state is synchronised.

    Args:
        call: Which call of hvd.elastic.checkpoint() named the folder of this state. Ranks may be in different trainings
            of one program with different folders; these are not compared.
        commit: The commit of the state that this rank has. None if it does not have the training's state yet.
        attempt: The result of loading a checkpoint. None if this rank has not tried.
        newest: The newest file that this rank sees in its folder.
        known: The newest file that any worker of the job has seen, according to the driver.
        lineages: The lineages of the files that this rank sees.
    """

    needs_sync: bool
    call: int = 0
    commit: CommitId | None = None
    attempt: LoadAttempt | None = None
    newest: SeenFile | None = None
    known: SeenFile | None = None
    lineages: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SyncDecision:
    """Decision for all ranks.

    Attributes:
        needs_sync: True if all ranks synchronise.
        commit: The commit of rank 0's state, which all ranks have after the sync.
        error: Reason to end training on all ranks, or empty.
    """

    needs_sync: bool
    commit: CommitId | None
    error: str = ""


def decide_sync(reports: Sequence[SyncReport]) -> SyncDecision:
    """Return the decision, from the reports of all ranks in rank order."""
    root = reports[0]
    commit = root.commit or (root.attempt.commit if root.attempt is not None else None)
    if any(report.commit is not None for report in reports):
        error = _error_with_state(reports)
    else:
        error = _error_without_state(reports)
    return SyncDecision(any(report.needs_sync for report in reports), commit, error)


def _error_with_state(reports: Sequence[SyncReport]) -> str:
    """Return the error, or an empty text, if at least one rank has the state."""
    root, call = reports[0].commit, reports[0].call
    if root is None:
        ranks = [rank for rank, report in enumerate(reports) if report.commit is not None]
        return f"rank 0, which hands out the state of the training, does not have it, and ranks {ranks} have"
    for rank, report in enumerate(reports):
        newest = report.newest
        if newest is None or report.call != call or root.lineage in report.lineages:
            continue
        if newest.commits > root.commits:
            return (
                f"rank {rank} sees the checkpoint {newest.path} with {newest.commits} commits of lineage "
                f"{newest.lineage}, and none of this training, which has made {root.commits} commits in lineage "
                f"{root.lineage} and did not go on from that checkpoint. {_REMEDY}, and one directory for each training"
            )
    return ""


def _error_without_state(reports: Sequence[SyncReport]) -> str:
    """Return the error, or an empty text, if no rank has the state."""
    for rank, report in enumerate(reports):
        if report.attempt is not None and report.attempt.error:
            return f"rank {rank} cannot load a checkpoint: {report.attempt.error}"
    attempt = reports[0].attempt
    if attempt is None:
        return "no rank has the state of the training, and rank 0 has not tried to load a checkpoint"
    for rank, report in enumerate(reports):
        newest = newest_of(report.newest, report.known)
        if newest is None or report.call != reports[0].call:
            continue
        seen = f"a worker of this job has seen the checkpoint {newest.path} (rank {rank} reports it)"
        if not attempt.folder:
            return (
                f"{seen}, and rank 0 has not called hvd.elastic.checkpoint(): call it on every rank, because any "
                "worker may become rank 0"
            )
        if not attempt.file:
            return f"{seen}, and rank 0 finds none in {attempt.folder}. {_REMEDY}"
        if newest.is_newer_than(attempt.newest):
            return f"{seen}, which is newer than all that rank 0 finds in {attempt.folder}. {_REMEDY}"
    return ""
