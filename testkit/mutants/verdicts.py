# SPDX-License-Identifier: Apache-2.0
"""Conclusions from the outcome of runs: noticed, survived, or void. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

# A run counts as a hang after this many times the control's duration, plus some seconds.
_TIMES_CONTROL = 2.5
_EXTRA_S = 10.0


class Ended(Enum):
    """Outcome of a run of tests."""

    PASSED = "passed"
    FAILED = "failed"
    HANGS = "hangs"


class Verdict(Enum):
    """Result of judging a mutant. `SAME`: it compiles to the original's code. `VOID`: the runs allow no conclusion."""

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
    """Run of tests that judged a mutant.

    Args:
        noticed_by: The verdict if the run does not pass.
        control_s: How long the run took without any mutant.
    """

    noticed_by: Verdict
    ended: Ended
    limit_s: float
    control_s: float


def limit_of(control_s: float) -> float:
    """Return the time limit of a run whose control took `control_s` seconds."""
    return _TIMES_CONTROL * control_s + _EXTRA_S


def is_hang_a_result(control_s: float, limit_s: float) -> bool:
    """Return True if a hang shows a mistake, because the control passed within half of the limit."""
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
    """Return why a slice is void: the controls that did not pass. Empty if all passed."""
    failed = [f"{name} {ended.value}" for name, ended in controls if ended is not Ended.PASSED]
    return f"without any mutant: {', '.join(failed)}" if failed else ""
