# SPDX-License-Identifier: Apache-2.0
"""What follows from the outcome of a run: noticed, survived, or nothing at all. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

# A run may take this many times as long as the control, and some seconds more, before it counts as a hang.
_TIMES_CONTROL = 2.5
_EXTRA_S = 10.0


class Ended(Enum):
    """How a run of tests ended."""

    PASSED = "passed"
    FAILED = "failed"
    HANGS = "hangs"


class Verdict(Enum):
    """What is known of a mutant. `SAME`: the compiler makes the same code of it. `VOID`: nothing follows."""

    UNIT = "unit tests"
    RANKS = "rank tests"
    SELECTION = "make test"
    SURVIVED = "survived"
    INVALID = "invalid"
    SAME = "same code"
    VOID = "void"


NOTICED = (Verdict.UNIT, Verdict.RANKS, Verdict.SELECTION)


@dataclass(frozen=True)
class Step:
    """One run of tests that judged a mutant.

    Args:
        noticed_by: The verdict if the run does not pass.
        control_s: How long the run took without any mutant.
    """

    noticed_by: Verdict
    ended: Ended
    limit_s: float
    control_s: float


def limit_of(control_s: float) -> float:
    """Return how long a run may take whose control took so long."""
    return _TIMES_CONTROL * control_s + _EXTRA_S


def is_hang_a_result(control_s: float, limit_s: float) -> bool:
    """Return True if a run that hangs shows a mistake: the control has passed within half of its limit."""
    return control_s <= limit_s / 2


def verdict_of(steps: Iterable[Step]) -> Verdict:
    """Return the verdict of the first run that did not pass, or SURVIVED if all passed."""
    for step in steps:
        if step.ended is Ended.FAILED:
            return step.noticed_by
        if step.ended is Ended.HANGS:
            return step.noticed_by if is_hang_a_result(step.control_s, step.limit_s) else Verdict.VOID
    return Verdict.SURVIVED


def why_void(controls: Iterable[tuple[str, Ended]]) -> str:
    """Return why a slice with these controls is void: an unmutated run that did not pass. Empty if all passed."""
    failed = [f"{name} {ended.value}" for name, ended in controls if ended is not Ended.PASSED]
    return f"without any mutant: {', '.join(failed)}" if failed else ""
