# SPDX-License-Identifier: Apache-2.0
"""The five collectives by size on 2 and 4 ranks, and allreduce by number of ranks on machines with many cores."""

from __future__ import annotations

from benchkit.parts.bench import OURS, Bench, usual_series
from benchkit.problem import OPS, Problem

_KB, _MB = 1 << 10, 1 << 20
_SIZES = (4, 1 * _KB, 32 * _KB, 256 * _KB, 1 * _MB, 4 * _MB, 25 * _MB, 100 * _MB, 256 * _MB)
_QUICK_SIZES = (4, 32 * _KB, 1 * _MB, 25 * _MB)
_SCALING_SIZES = (4, 32 * _KB, 1 * _MB, 25 * _MB, 100 * _MB, 256 * _MB)
# With more ranks than cores, only allreduce exceeds this size, because the others would take half an hour.
_CROWDED_LIMIT = 25 * _MB


def measure_collectives(bench: Bench) -> None:
    for ranks in (2, 4):
        with bench.alive(ranks) as worlds:
            crowded = not worlds[OURS].cores
            for op in OPS:
                for size in _QUICK_SIZES if bench.quick else _SIZES:
                    if not crowded or size <= _CROWDED_LIMIT or op == "allreduce":
                        problem = Problem(op, size, "float32", ranks)
                        case = {"op": op, "bytes": size, "ranks": ranks}
                        bench.compare("collectives", case, problem, usual_series(worlds, problem), bench.pace(size))


def measure_scaling(bench: Bench) -> None:
    if len(bench.ranks) < 2:
        bench.say("scaling: needs at least 4 cores (or --ranks); part `collectives` has 2 and 4 ranks")
        return
    for ranks in bench.ranks:
        with bench.alive(ranks) as worlds:
            for size in _QUICK_SIZES if bench.quick else _SCALING_SIZES:
                problem = Problem("allreduce", size, "float32", ranks)
                case = {"op": "allreduce", "bytes": size, "ranks": ranks}
                bench.compare("scaling", case, problem, usual_series(worlds, problem), bench.pace(size))
