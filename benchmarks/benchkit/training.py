# SPDX-License-Identifier: Apache-2.0
"""Training steps of one workload in several ways, all alive at once and taking turns; their cost above the bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from benchkit import machine
from benchkit.training_ways import BOUND, BY_NAME, world_of
from benchkit.world import World, WorldError

RESAMPLES, CONFIDENCE = 2000, 0.95
Record = dict[str, Any]
Say = Callable[[str], None]

WORKLOADS = {
    "resnet50": "ResNet-50 on 32x32 images",
    "gpt": "GPT of 20.5 M parameters",
    "tensors": "the 161 tensors of ResNet-50, next to no compute",
    "tiny": "200 parameters of 4 B",
}
BATCH = {"resnet50": 4, "gpt": 1, "tensors": 1, "tiny": 1}


@dataclass(frozen=True)
class Setup:
    """How to measure."""

    ranks: int
    ways: list[str]
    rounds: int
    turn_seconds: float
    warmup: int = 3
    batch: dict[str, int] = field(default_factory=lambda: dict(BATCH))


@dataclass
class Series:
    """One way on one workload: microseconds of a step, once for each round."""

    world: World
    rounds: list[float] = field(default_factory=list)
    facts: Record = field(default_factory=dict)


@dataclass(frozen=True)
class Cost:
    """Microseconds of a step above the bound; `low` and `high` hold it with 95 % confidence."""

    value: float
    low: float
    high: float


def measure(workload: str, setup: Setup, say: Say) -> tuple[dict[str, Series], bool]:
    """The ways that came to the end, and whether all did. Fresh processes, so that peaks are their own."""
    series: dict[str, Series] = {}
    failed: list[str] = []
    try:
        for name in setup.ways:
            series[name] = Series(world_of(BY_NAME[name], setup.ranks, machine.cores_for(setup.ranks)))
            attempt(name, series, failed, say, lambda name=name: get_ready(series[name], name, workload, setup))
        steps = steps_per_turn(series, setup)
        for number in range(setup.rounds):
            # Forth and back, so that nobody always runs behind the same neighbour.
            for name in list(series) if number % 2 == 0 else list(reversed(series)):
                attempt(name, series, failed, say, lambda name=name: add_round(series[name], steps))
        for name in list(series):
            attempt(name, series, failed, say, lambda name=name: finish(series[name], name))
        return series, not failed
    finally:
        for one in series.values():
            one.world.stop()


def attempt(name: str, series: dict[str, Series], failed: list[str], say: Say, action: Any) -> None:
    """A way that fails is named and left out; the others go on."""
    try:
        action()
    except WorldError as error:
        say(f"{name} is left out: {error}")
        series.pop(name).world.stop()
        failed.append(name)


def get_ready(one: Series, way: str, workload: str, setup: Setup) -> None:
    one.world.start()
    one.facts = one.world.ask("build", way=way, workload=workload, batch=setup.batch[workload])[0]
    one.world.ask("steps", count=setup.warmup)


def steps_per_turn(series: dict[str, Series], setup: Setup) -> int:
    """As many steps of the slowest way as fill a turn; the same for all."""
    slowest = max((_seconds(one.world, 1) for one in series.values()), default=1.0)
    return max(1, math.ceil(setup.turn_seconds / slowest))


def add_round(one: Series, steps: int) -> None:
    one.rounds.append(_seconds(one.world, steps) / steps * 1e6)


def finish(one: Series, way: str) -> None:
    """Figures of ranks that have drifted apart are worth nothing."""
    states = one.world.ask("state")
    one.facts["peak_mib"] = max(state["peak_mib"] for state in states)
    if way != BOUND and len({state["weights"] for state in states}) != 1:
        raise WorldError(f"{way}: the ranks hold different weights after training")


def _seconds(world: World, steps: int) -> float:
    return float(max(answer["seconds"] for answer in world.ask("steps", count=steps)))


def records_of(workload: str, series: dict[str, Series], setup: Setup) -> list[Record]:
    return [_record(name, one, series, workload, setup) for name, one in series.items()]


def _record(way: str, one: Series, series: dict[str, Series], workload: str, setup: Setup) -> Record:
    low, high = np.percentile(one.rounds, [10, 90])
    record: Record = {"workload": workload, "way": way, "library": one.world.library, "batch": setup.batch[workload]}
    record |= {"tensors": one.facts["tensors"], "parameters": one.facts["parameters"]}
    record |= {"step_us": float(np.median(one.rounds)), "p10_us": float(low), "p90_us": float(high)}
    record |= {"rounds": len(one.rounds), "peak_mib": one.facts["peak_mib"], "pinned": bool(one.world.cores)}
    if way != BOUND and BOUND in series:
        cost = cost_above(one.rounds, series[BOUND].rounds)
        record["cost_us"] = asdict(cost)
        record["cost_per_tensor_us"] = cost.value / one.facts["tensors"]
    return record


def cost_above(rounds: Sequence[float], bound: Sequence[float]) -> Cost:
    """Median of the differences round by round: what disturbs the machine for seconds falls on both."""
    differences = np.asarray(rounds) - np.asarray(bound)
    draws = np.random.default_rng(0).integers(0, len(differences), (RESAMPLES, len(differences)))
    edge = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.median(differences[draws], axis=1), [edge, 1 - edge])
    return Cost(float(np.median(differences)), float(low), float(high))
