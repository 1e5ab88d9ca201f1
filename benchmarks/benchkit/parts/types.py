# SPDX-License-Identifier: Apache-2.0
"""Half precision: bytes per second of float16 and bfloat16, compared with Khorovod's float32 and Gloo's half types."""

from __future__ import annotations

from dataclasses import replace

from benchkit.ledger import Sample
from benchkit.measuring import Series, measure
from benchkit.parts.bench import OURS, Bench
from benchkit.problem import Problem
from benchkit.units import size_text, time_text
from benchkit.world import World

_TYPES = ("float16", "bfloat16")
_SIZES = (1 << 20, 25 << 20)


def measure_types(bench: Bench) -> None:
    with bench.alive(2) as worlds:
        for size in _SIZES[1:] if bench.quick else _SIZES:
            for average in (False, True):
                _measure(bench, worlds, Problem("allreduce", size, "float32", 2, average=average))


def _measure(bench: Bench, worlds: dict[str, World], problem: Problem) -> None:
    """Measure all types and both kinds of buffers in turn; then append one case for each type and kind."""
    series = []
    for dtype in ("float32", *_TYPES):
        own = replace(problem, dtype=dtype)
        for buffers, door in (("ordinary", "numpy"), ("shared", "shared")):
            series.append(Series(f"{dtype} {buffers}", worlds[OURS], door, own))
        if "gloo" in worlds and not problem.average and dtype != "float32":
            series.append(Series(f"{dtype} gloo", worlds["gloo"], "", own))
    done = {one.label: one for one in measure(problem, series, bench.pace(problem.bytes), bench.say)}
    reduce = "average" if problem.average else "sum"
    for dtype in _TYPES:
        for buffers in ("ordinary", "shared"):
            wanted = {OURS: f"{dtype} {buffers}", "float32": f"float32 {buffers}", "gloo": f"{dtype} gloo"}
            found = {way: done[label] for way, label in wanted.items() if label in done}
            samples = [Sample(way, one.world.library, one.rounds) for way, one in found.items()]
            case = {"dtype": dtype, "bytes": problem.bytes, "reduce": reduce, "buffers": buffers, "ranks": 2}
            records = bench.ledger.add("types", case, samples, [OURS])
            times = "  ".join(f"{record['way']} {time_text(record['median'])}" for record in records)
            bench.say(f"types: {dtype} {reduce} {size_text(problem.bytes)} in {buffers} memory: {times}")
