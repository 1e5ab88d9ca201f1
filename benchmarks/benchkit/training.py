# SPDX-License-Identifier: Apache-2.0
"""Training steps of one workload in several ways, which are all alive and take turns; their cost above the bound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np

from benchkit import machine
from benchkit.pairs import Cost, cost_of
from benchkit.training_ways import BOUND, BY_NAME, world_of
from benchkit.world import Hosts, World, WorldError

LEAST_STEPS = 3  # steps of a turn, without the first one
Record = dict[str, Any]
Say = Callable[[str], None]

WORKLOADS = {
    "resnet50": "ResNet-50 on 32x32 images",
    "gpt": "GPT of 20.5 M parameters",
    "tensors": "the 161 tensors of ResNet-50, next to no compute",
    "tiny": "200 parameters of 4 B",
}
# Workloads that show the cost of a parameter at any count.
MANY = {f"many-{count}": count for count in (100, 1000, 3000, 10000, 30000)}
WORKLOADS |= {name: f"{count:,} parameters of 64 B" for name, count in MANY.items()}
BATCH = {"resnet50": 4, "gpt": 1} | dict.fromkeys(("tensors", "tiny", *MANY), 1)


@dataclass(frozen=True)
class Setup:
    """Options of a measurement."""

    ranks: int
    ways: list[str]
    rounds: int
    turn_seconds: float
    warmup: int = 3
    batch: dict[str, int] = field(default_factory=lambda: dict(BATCH))
    launches: int = 1  # starts with new processes, whose memory layout, and therefore speed, differs
    hosts: Hosts | None = None  # hosts of the ranks, if not all on this host


@dataclass
class Series:
    """Results of one way on one workload: microseconds of a step, for each launch and round."""

    world: World
    launches: list[list[float]] = field(default_factory=list)
    slowest: list[float] = field(default_factory=list)  # slowest step of each turn
    facts: Record = field(default_factory=dict)

    @property
    def rounds(self) -> list[float]:
        return list(itertools.chain(*self.launches))


def measure(workload: str, setup: Setup, say: Say) -> tuple[dict[str, Series], bool]:
    """Return the series of the ways that did not fail, and True if none failed.

    Each way uses new processes, so that peak memory is its own.
    """
    series = {name: Series(_new_world(name, setup)) for name in setup.ways}
    failed: list[str] = []
    for _ in range(setup.launches):
        _launch(workload, setup, series, failed, say)
    return series, not failed


def _new_world(way: str, setup: Setup) -> World:
    cores: Sequence[int | str] = (machine.pairs_for if setup.hosts else machine.cores_for)(setup.ranks)
    world = world_of(BY_NAME[way], setup.ranks, cores, "tcp" if setup.hosts else "shm")
    world.hosts = setup.hosts
    return world


def _launch(workload: str, setup: Setup, series: dict[str, Series], failed: list[str], say: Say) -> None:
    try:
        for name, one in list(series.items()):
            one.world = _new_world(name, setup)
            one.launches.append([])
            attempt(name, series, failed, say, lambda one=one, name=name: get_ready(one, name, workload, setup))
        steps = steps_per_turn(series, setup)
        for number in range(setup.rounds):
            # Alternate the order, so that no way always runs after the same one, and drift affects all ways equally.
            for name in list(series) if number % 2 == 0 else list(reversed(series)):
                attempt(name, series, failed, say, lambda name=name: add_round(series[name], steps))
        for name in list(series):
            attempt(name, series, failed, say, lambda name=name: finish(series[name], name))
    finally:
        for one in series.values():
            one.world.stop()


def attempt(name: str, series: dict[str, Series], failed: list[str], say: Say, action: Any) -> None:
    """Run an action; if the way fails, report it and leave it out."""
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
    """Return the number of steps with which the slowest way fills a turn; all ways use it."""
    slowest = max((max(map(sum, _steps(one.world, 1))) for one in series.values()), default=1.0)
    return max(LEAST_STEPS, math.ceil(setup.turn_seconds / slowest))


def add_round(one: Series, steps: int) -> None:
    """Add the median step, where each step takes as long as on its slowest rank, because ranks wait for each other.

    The first step of a turn is left out, because the caches are full of another way's data.
    """
    times = [max(step) * 1e6 for step in zip(*_steps(one.world, 1 + steps), strict=True)][1:]
    one.launches[-1].append(median(times))
    one.slowest.append(max(times))


def finish(one: Series, way: str) -> None:
    """Record the ranks' states; raise an error if their weights differ, because then the times are invalid."""
    states = one.world.ask("state")
    one.facts["peak_mib"] = max(state["peak_mib"] for state in states)
    if way != BOUND and len({state["weights"] for state in states}) != 1:
        raise WorldError(f"{way}: the ranks hold different weights after training")


def _steps(world: World, count: int) -> list[list[float]]:
    """Return the seconds of each step, for each rank."""
    return [answer["seconds"] for answer in world.ask("steps", count=count)]


def records_of(workload: str, series: dict[str, Series], setup: Setup) -> list[Record]:
    return [_record(name, one, series, workload, setup) for name, one in series.items()]


def _record(way: str, one: Series, series: dict[str, Series], workload: str, setup: Setup) -> Record:
    low, high = np.percentile(one.rounds, [10, 90])
    record: Record = {"workload": workload, "way": way, "library": one.world.library, "batch": setup.batch[workload]}
    record |= {"tensors": one.facts["tensors"], "parameters": one.facts["parameters"]}
    record |= {"step_us": float(np.median(one.rounds)), "p10_us": float(low), "p90_us": float(high)}
    record |= {"slowest_us": float(np.median(one.slowest))}
    record |= {"launches": len(one.launches), "rounds": len(one.rounds)}
    record |= {"peak_mib": one.facts["peak_mib"], "pinned": bool(one.world.cores)}
    if way != BOUND and BOUND in series:
        cost = cost_above(one, series[BOUND])
        record["cost_us"] = asdict(cost)
        record["cost_per_tensor_us"] = cost.value / one.facts["tensors"]
    return record


def cost_above(one: Series, bound: Series) -> Cost:
    """Return the cost from differences between equal rounds, because disturbances of the machine affect both ways.

    Rounds of one launch are not independent. So with several launches, each launch counts as one observation: the
    median of its rounds.
    """
    launches = [
        [mine - bare for mine, bare in zip(*both, strict=True)]
        for both in zip(one.launches, bound.launches, strict=True)
    ]
    return cost_of(launches[0] if len(launches) == 1 else [median(differences) for differences in launches])
