# SPDX-License-Identifier: Apache-2.0
"""Collection of the ranks' results. A failure limits the wait, because some ranks may never answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from horovod.common.exceptions import HorovodInternalError

_LOOK_S = 0.2
# Survivors notice a dead rank within a second and a silent one within ten seconds, and then end by themselves.
_SURVIVORS_S = 15.0
# If only ranks that others have lost still run, they are frozen, unless Ray is about to report their death.
_LOST_S = 5.0


@dataclass
class Outcome:
    """Results so far.

    `values` and `failures` are by rank; `running` holds ranks that have neither returned nor failed.
    """

    running: set[int]
    values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, BaseException] = field(default_factory=dict)

    @property
    def died(self) -> list[int]:
        return sorted(rank for rank, error in self.failures.items() if isinstance(error, RayActorError))

    @property
    def silent(self) -> list[int]:
        """Return the ranks that others have lost but that Ray considers alive: frozen, or on an unreachable node."""
        causes = [getattr(error, "cause", error) for error in self.failures.values()]
        return sorted(self.running & {getattr(cause, "lost_rank", None) for cause in causes})

    def cause(self) -> int:
        """Return the rank to blame: one that died, else one whose own code failed, else the first that failed."""
        own = [rank for rank, error in self.failures.items() if not isinstance(error, HorovodInternalError)]
        return (self.died or own or list(self.failures))[0]


def collect(
    references: Mapping[int, Any],
    *,
    on_failure: Callable[[int, BaseException], None],
    meanwhile: Sequence[Callable[[], None]] = (),
) -> Outcome:
    """Return what each rank returned or raised. After a failure, wait for the other ranks only for a limited time.

    Args:
        on_failure: Called with each rank that fails, and its error.
        meanwhile: Called repeatedly, and once more at the end.
    """
    outcome = Outcome(set(references))
    pending = {reference: rank for rank, reference in references.items()}
    deadline = math.inf
    while pending and time.monotonic() < deadline:
        done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=_LOOK_S)
        for call in meanwhile:
            call()
        for reference in done:
            rank = pending.pop(reference)
            outcome.running.remove(rank)
            try:
                outcome.values[rank] = ray.get(reference)
            except Exception as error:
                deadline = min(deadline, time.monotonic() + _SURVIVORS_S)
                outcome.failures[rank] = error
                on_failure(rank, error)
        if done and outcome.running == set(outcome.silent):
            deadline = min(deadline, time.monotonic() + _LOST_S)
    for call in meanwhile:
        call()
    return outcome


def in_words(error: BaseException) -> str:
    """Return one line that describes a worker's failure."""
    if isinstance(error, RayActorError):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next((line for line in lines if "process" in line.lower() or "killed" in line.lower()), lines[0])
        return f"its actor died ({reason})"
    if isinstance(error, RayError):
        cause = getattr(error, "cause", None)
        return f"{type(cause).__name__}: {cause}" if cause is not None else str(error).strip().splitlines()[-1]
    return f"{type(error).__name__}: {error}"
