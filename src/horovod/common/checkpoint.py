# SPDX-License-Identifier: Apache-2.0
"""Commits on disk: rank 0 writes them in a thread of its own, and a restarted job resumes from them.

checkpoint_file defines the contents of a file, and checkpoint_folder decides which files belong together. The state
decides what it stores (`pin_commit`, `load_commit`). At their first sync, all ranks decide together whether training
may begin with what rank 0 has loaded (sync_decision). Therefore `load` returns an error of a file instead of raising
it.
"""

from __future__ import annotations

import itertools
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod.common import checkpoint_file, checkpoint_folder
from horovod.common.checkpoint_file import BadCheckpointError
from horovod.common.checkpoint_folder import list_files as list_files
from horovod.common.context import default_context
from horovod.common.exceptions import HorovodCheckpointError
from horovod.common.joining import elastic_place
from horovod.common.lineage import CommitId, SeenFile, merged, start_lineage
from horovod.common.log import logger
from horovod.common.rendezvous.protocol import RendezvousError
from horovod.common.sync_decision import LoadAttempt

if TYPE_CHECKING:
    from horovod.common.elastic import State

_calls = itertools.count()


class Checkpoint:
    """Writer of a state's commits to a folder.

    Attributes:
        resumed_from: The file from which training was resumed, or None.
        call: Number that distinguishes the folders of one program: all workers call hvd.elastic.checkpoint() in one
            order.
    """

    def __init__(
        self, state: State, directory: str | os.PathLike[str], every: int, keep: int, overwrite: bool = False
    ) -> None:
        if every < 1 or keep < 1:
            raise ValueError(f"every ({every}) and keep ({keep}) must be at least 1")
        self._state = state
        self._folder = Path(directory)
        self._every = every
        self._keep = keep
        self._overwrite = overwrite
        self._commits = 0  # number of commits since the last one that was passed to a writer thread
        self._writer: threading.Thread | None = None
        self._has_failed = False
        self._last_number: int | None = None  # number of the newest file when this rank last looked
        self._has_warned = False
        self._attempt: LoadAttempt | None = None
        self._attempted_in = -1  # generation of `_attempt`
        self.call = next(_calls)
        self.resumed_from: Path | None = None

    @property
    def _writes(self) -> bool:
        """True on rank 0, the only rank that writes. After rank 0 is lost, another worker gets that rank."""
        return default_context.topology.rank == 0

    # Before training

    def look(self) -> tuple[SeenFile | None, frozenset[str]]:
        """Return the newest file in the folder and all lineages there; None and an empty set if overwrite=True."""
        if self._overwrite:
            return None, frozenset()
        return checkpoint_folder.look_at(self._folder, self.call)

    def report_newest(self) -> None:
        """Report the newest file to the driver of an elastic job, before anything can happen to this worker.

        A worker without this folder that becomes rank 0 then knows that it must not start from the beginning.
        """
        newest, _ = self.look()
        if newest is None:
            return
        default_context.elastic.seen_files = merged(default_context.elastic.seen_files, [newest])
        if elastic_place.is_elastic(os.environ):
            # If the driver cannot be reached, it has ended, and the job ends anyway.
            with suppress(OSError, RendezvousError):
                elastic_place.report_seen(os.environ, [newest])

    def load(self) -> LoadAttempt:
        """Load the newest usable file and return the result. Only rank 0 calls this.

        Load once in each generation. The result of an earlier generation does not count, because a failed sync may have
        changed the state since, and another worker may have written a file.
        """
        if self._attempt is None or self._attempted_in != default_context.generation:
            self._attempted_in = default_context.generation
            try:
                self._attempt = self._load_newest()
            # catch every kind of error, because all ranks must receive it at their next sync
            except Exception as error:
                text = str(error) if isinstance(error, HorovodCheckpointError) else f"{type(error).__name__}: {error}"
                folder = str(self._folder)
                self._attempt = LoadAttempt(None, folder, error=text if folder in text else f"{folder}: {text}")
        return self._attempt

    def _load_newest(self) -> LoadAttempt:
        folder = str(self._folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise HorovodCheckpointError(f"{error.filename or folder} is a file, not a directory") from None
        checkpoint_folder.remove_abandoned(self._folder)
        files = list_files(self._folder)
        self._last_number = checkpoint_folder.number_of(files[0]) if files else 0
        if self._overwrite or not files:
            if files:
                logger.warning(
                    "Training starts from the beginning and ignores the %d checkpoints in %s (overwrite=True)",
                    len(files),
                    folder,
                )
            return LoadAttempt(start_lineage(), folder)
        newest, _ = self.look()
        problems = []
        usable = checkpoint_folder.files_to_resume_from(files)
        for path in usable:
            try:
                commit = checkpoint_file.describe(path).commit
                content = checkpoint_file.read(path)
            except (BadCheckpointError, OSError) as error:
                logger.warning("The checkpoint %s is not used: %s", path, error)
                problems.append(f"{path.name}: {error}")
                continue
            self._take_over(path, content)
            return LoadAttempt(commit, folder, str(path), newest)
        raise HorovodCheckpointError(
            f"None of the {len(usable)} checkpoints in {folder} is usable ({'; '.join(problems)}). To start from the "
            "beginning, pass overwrite=True to hvd.elastic.checkpoint(), or name another directory"
        )

    def _take_over(self, path: Path, content: Any) -> None:
        try:
            self._state.load_commit(content)
        except Exception as error:
            raise HorovodCheckpointError(f"{path}: {error}") from error
        self.resumed_from = path
        logger.info("Training continues from the checkpoint %s", path)

    # During training

    def committed(self) -> None:
        """Count a commit, and write every `every`-th one. Skip a commit while an earlier one is still being written."""
        if self._state._commit_id is None:
            self._state._commit_id = self._first_commit()
        self._commits += 1
        if self._commits >= self._every and self._writes and not self._is_busy:
            self._write()

    def _first_commit(self) -> CommitId:
        """Return the first commit's id for a state that is used without hvd.elastic.run.

        Ranks have not agreed on an id for such a state. Raise an error on a rank that became rank 0 later and never
        loaded the state, because writing it would hide the progress on disk.
        """
        if self._attempt is not None and self._attempt.commit is not None:
            return self._attempt.commit.following()
        if self._writes:
            error = self._attempt.error if self._attempt is not None else ""
            newest, _ = self.look()
            if error or newest is not None:
                raise HorovodCheckpointError(
                    error
                    or f"rank 0 has not loaded the checkpoints in {self._folder}, so it must not write there: pass the "
                    "state to a function that is decorated with hvd.elastic.run"
                )
        return start_lineage().following()

    def finish(self) -> None:
        """Write the last commit if it is not on disk yet, and wait until it is."""
        self.wait()
        if self._commits and self._writes:
            self._write()
            self.wait()

    def wait(self) -> None:
        """Wait until the commit that is being written is on disk."""
        if self._writer is not None:
            self._writer.join()

    @property
    def _is_busy(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def _write(self) -> None:
        self._commits = 0
        commit = self._state._commit_id
        assert commit is not None
        content = self._state.pin_commit()
        # The thread is not a daemon, so that the program waits for it before it ends.
        self._writer = threading.Thread(target=self._write_now, args=(content, commit), name="horovod-checkpoint")
        self._writer.start()

    def _write_now(self, content: Any, commit: CommitId) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            files = list_files(self._folder)
            number = checkpoint_folder.number_of(files[0]) + 1 if files else 1
            self._warn_of_others(files, commit.lineage)
            checkpoint_file.write(checkpoint_folder.path_of(self._folder, number, commit.lineage), content, commit)
            self._last_number = number
            for old in checkpoint_folder.of_lineage(files, commit.lineage)[self._keep - 1 :]:
                old.unlink(missing_ok=True)
            if self._has_failed:
                logger.warning("Checkpoints are written to %s again", self._folder)
            self._has_failed = False
        except Exception as error:  # catch every kind of error, because training is worth more than its copy on disk
            if not self._has_failed:
                logger.warning(
                    "No checkpoint could be written to %s, and training continues without one: %s. Later commits try "
                    "again, but further failures are not logged",
                    self._folder,
                    error,
                )
            self._has_failed = True
        finally:
            self._state.release_commit()

    def _warn_of_others(self, files: list[Path], lineage: str) -> None:
        """Warn once if another training writes to this folder. Its files are not deleted."""
        since = self._last_number
        others = [
            path
            for path in files
            if since is not None
            and checkpoint_folder.number_of(path) > since
            and checkpoint_folder.lineage_of(path) != lineage
        ]
        if others and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "Another training also writes checkpoints to %s: %s is not of lineage %s. Give each training, and each "
                "state, its own directory, because no job can continue from a directory with both",
                self._folder,
                others[0].name,
                lineage,
            )


def checkpoint(
    state: State, directory: str | os.PathLike[str], every: int = 1, keep: int = 3, overwrite: bool = False
) -> Checkpoint:
    """Write commits of `state` to a directory, and resume from the newest one there.

    Call this on every rank, after hvd.init() and before training. Rank 0 writes in a thread of its own. A file is
    either complete or absent. If a file was damaged later, the next older one is loaded. If no file is usable, training
    raises HorovodCheckpointError on every rank.

    Args:
        state: The state that hvd.elastic.run's function gets.
        directory: The folder of the checkpoints.
        every: Write one of this many commits.
        keep: Number of files of this training to keep.
        overwrite: Start from the beginning even if there are checkpoints.
    """
    if not default_context.is_initialized:
        raise ValueError("hvd.elastic.checkpoint() was called before hvd.init(): call hvd.init() first")
    result = Checkpoint(state, directory, every, keep, overwrite)
    result.report_newest()
    if default_context.topology.rank == 0:
        result.load()
    state.use_checkpoint(result)
    return result
