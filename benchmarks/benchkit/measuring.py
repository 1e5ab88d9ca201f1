# SPDX-License-Identifier: Apache-2.0
"""Interleaved measurement: all worlds are alive together, and take turns on the same cores in every round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchkit.problem import Problem
from benchkit.world import UnsupportedError, World, WorldError

_MAX_ITERATIONS = 500  # limit for one turn


@dataclass(frozen=True)
class Pace:
    """Duration and conditions of a measurement."""

    rounds: int
    seconds: float  # time for one series on one problem, over all rounds
    dirty: bool
    aligned: bool


@dataclass
class Series:
    """Curve: a library through one of its APIs, with its own problem if needed."""

    label: str
    world: World
    door: str = ""
    problem: Problem | None = None
    failure: str | None = None
    rounds: list[list[float]] = field(default_factory=list)
    iterations: int = 0
    warmup: int = 1


def measure(problem: Problem, series: Sequence[Series], pace: Pace, say: Callable[[str], None]) -> list[Series]:
    """Fill `rounds` of every series that supports the problem, and return these. A world that fails is left out."""
    able = [one for one in series if one.failure is None and _attempt(one, say, _get_ready, problem, pace)]
    for number in range(pace.rounds):
        # Alternate the order, so that no series always runs after the same one.
        for one in able if number % 2 == 0 else reversed(able):
            if one.failure is None:
                _attempt(one, say, _add_round, pace)
    for one in able:
        if one.failure is None:
            _attempt(one, say, _forget)
    return [one for one in able if one.failure is None]


def _get_ready(one: Series, problem: Problem, pace: Pace) -> None:
    one.rounds, one.warmup = [], 1
    one.world.prepare(one.label, one.problem or problem, one.door)
    typical = median(_turn(one, pace, 3))
    if typical < 1e-3:
        typical = median(_turn(one, pace, 20))
    one.iterations = int(min(_MAX_ITERATIONS, max(1, pace.seconds / pace.rounds / typical)))
    one.warmup = max(1, one.iterations // 10)


def _add_round(one: Series, pace: Pace) -> None:
    one.rounds.append(_turn(one, pace, one.iterations))


def _forget(one: Series) -> None:
    one.world.forget()


def _turn(one: Series, pace: Pace, iterations: int) -> list[float]:
    how = {"warmup": one.warmup, "iterations": iterations, "dirty": pace.dirty, "aligned": pace.aligned}
    return one.world.measure(one.label, **how)


def _attempt(one: Series, say: Callable[[str], None], action: Callable[..., None], *arguments: Any) -> bool:
    try:
        action(one, *arguments)
    except UnsupportedError as error:
        say(f"{one.label} is left out here: {error}")
        return False
    except WorldError as error:
        one.failure = str(error)
        one.world.stop()
        say(f"{one.label} is left out from here on: {error}")
        return False
    return True
