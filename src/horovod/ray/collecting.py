# SPDX-License-Identifier: Apache-2.0
"""Waits for what ranks return. The first failure ends the wait: no rank is waited for that can never answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from horovod.common.exceptions import HorovodInternalError

_LOOK_S = 0.2
# Survivors learn of a dead rank within a second, of a silent one within ten, and then end by themselves.
_SURVIVORS_S = 15.0


@dataclass
class Outcome:
    """`values` and `failures` by rank; ranks in neither still run."""

    values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, BaseException] = field(default_factory=dict)

    @property
    def died(self) -> list[int]:
        return sorted(rank for rank, error in self.failures.items() if isinstance(error, RayActorError))

    def cause(self) -> int:
        """The rank to blame: one that died, else one whose own code failed, else the first that failed."""
        own = [rank for rank, error in self.failures.items() if not isinstance(error, HorovodInternalError)]
        return (self.died or own or list(self.failures))[0]


def collect(
    references: Mapping[int, Any],
    *,
    on_failure: Callable[[int, BaseException], None],
    meanwhile: Sequence[Callable[[], None]] = (),
) -> Outcome:
    """What each rank returned or raised, by rank. After a failure the others have a moment to end, too.

    `meanwhile` is called again and again, and once more at the end.
    """
    outcome = Outcome()
    pending = {reference: rank for rank, reference in references.items()}
    deadline: float | None = None
    while pending and (deadline is None or time.monotonic() < deadline):
        done, _ = ray.wait(list(pending), num_returns=len(pending), timeout=_LOOK_S)
        for call in meanwhile:
            call()
        for reference in done:
            rank = pending.pop(reference)
            try:
                outcome.values[rank] = ray.get(reference)
            except Exception as error:
                if deadline is None:
                    deadline = time.monotonic() + _SURVIVORS_S
                outcome.failures[rank] = error
                on_failure(rank, error)
    for call in meanwhile:
        call()
    return outcome


def in_words(error: BaseException) -> str:
    """One line that says what became of a worker."""
    if isinstance(error, RayActorError):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = next((line for line in lines if "process" in line.lower() or "killed" in line.lower()), lines[0])
        return f"its actor died ({reason})"
    if isinstance(error, RayError):
        cause = getattr(error, "cause", None)
        return f"{type(cause).__name__}: {cause}" if cause is not None else str(error).strip().splitlines()[-1]
    return f"{type(error).__name__}: {error}"
