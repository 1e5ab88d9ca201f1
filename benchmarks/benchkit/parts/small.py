# SPDX-License-Identifier: Apache-2.0
"""Small messages through the Python API, with median and 99th percentile, and the cost of an idle engine."""

from __future__ import annotations

from dataclasses import replace

from benchkit.parts.bench import Bench, usual_series
from benchkit.problem import Problem
from benchkit.world import World, WorldError

_MESSAGES = ((4, 1), (32 << 10, 1), (1 << 10, 32))  # bytes, and tensors at a time
_IDLE_SECONDS = 2.0


def measure_small(bench: Bench) -> None:
    with bench.alive(2) as worlds:
        for size, tensors in _MESSAGES:
            problem = Problem("allreduce", size, "float32", 2, tensors)
            # Measure longer than usual, because a 99th percentile needs thousands of runs.
            pace = replace(bench.pace(size), seconds=0.5 if bench.quick else 3.0)
            case = {"bytes": size, "tensors": tensors, "ranks": 2}
            bench.compare("small", case, problem, usual_series(worlds, problem), pace)
        for world in worlds.values():
            if world.name != "floor":
                _watch_idle(bench, world)


def _watch_idle(bench: Bench, world: World) -> None:
    """Measure the processor time of a rank that is idle after work, and the memory that joining a world added."""
    try:
        answers = world.idle(_IDLE_SECONDS)
    except WorldError:
        return  # the failure was already reported
    facts = {
        "idle_cpu_percent": round(100 * max(answer["cpu_s"] for answer in answers) / _IDLE_SECONDS, 3),
        "idle_wakeups_per_s": max(answer["wakeups"] for answer in answers) / _IDLE_SECONDS,
        "added_mib": round(max(hello["added_bytes"] for hello in world.hellos) / 2**20, 2),
    }
    bench.ledger.note("idle", {"ranks": world.ranks}, world.name, world.library, facts)
    bench.say(f"idle: {world.name} {facts}")
