#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the autotuner's choice with the best point of the whole grid, on the gradients of ResNet-50.

    python benchmarks/autotune.py --np 2

Measures every point of the grid, lets the tuner choose, then measures its choice, the starting values and the grid's
best points in turn. The result is the ratio in that last part, because all its points meet equal conditions.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from benchkit.resnet50 import Training
from testkit.launcher import HOROVODRUN
from testkit.processes import Process

import horovod.numpy as hvd
from horovod.common.context import default_context

MIB, KIB = 1 << 20, 1 << 10

Point = tuple[int, float, int]  # fusion threshold in bytes, cycle time in ms, chunk in bytes
START: Point = (128 * MIB, 1.0, 256 * KIB)
# The grid that the tuner searches (engine/tuning/autotune.cc).
GRID: list[Point] = [
    (fusion, cycle, chunk)
    for fusion in (MIB // 2, 2 * MIB, 8 * MIB, 32 * MIB, 128 * MIB)
    for cycle in (0.1, 0.3, 1.0, 3.0, 10.0)
    for chunk in (64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB)
]
RIVALS = 4  # how many of the grid's best points are measured again with the tuner's choice
VARIABLES = ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME", "HOROVOD_CHUNK_BYTES")


def main() -> int:
    options = parse()
    if "HOROVOD_RANK" in os.environ:
        return work(options)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        program = [sys.executable, __file__, *sys.argv[1:], "--result", str(result)]
        # One compute thread for each rank, like a training process with its own core.
        one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with Process([*HOROVODRUN, "-np", str(options.np), *program], one_thread, stdout=None, stderr=None) as job:
            if job.wait() != 0:
                return int(job.returncode)
        report(json.loads(result.read_text()), options)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=2, help="ranks")
    parser.add_argument("--rounds", type=int, default=1, help="times that the whole grid is measured")
    parser.add_argument("--steps", type=int, default=8, help="steps of one measurement on the grid")
    parser.add_argument("--final-rounds", type=int, default=7, help="rounds of the comparison at the end")
    parser.add_argument("--points", type=int, default=len(GRID), help="take only so many points of the grid, at random")
    parser.add_argument("--compute-ms", type=float, default=16.0, help="compute of one step")
    parser.add_argument("--record", type=Path, help="write the grid for engine/tests/autotune_test.cc")
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


# The part that runs in the ranks.


def work(options: argparse.Namespace) -> int:
    grid = random.Random(1).sample(GRID, options.points)
    if START not in grid:
        grid.append(START)
    scores: dict[Point, list[float]] = {point: [] for point in grid}
    for number in range(options.rounds):
        random.Random(number).shuffle(grid)
        for point in grid:
            scores[point].append(measure_fixed(point, options))
    chosen = tune(options)
    medians = {point: median(values) for point, values in scores.items()}
    finalists = list(dict.fromkeys([chosen, START, *sorted(medians, key=medians.__getitem__, reverse=True)[:RIVALS]]))
    finals: dict[Point, list[float]] = {point: [] for point in finalists}
    for _ in range(options.final_rounds):
        for point in finalists:
            finals[point].append(measure_fixed(point, options))
    if os.environ["HOROVOD_RANK"] == "0":
        grid_rows = [[*point, score] for point, score in medians.items()]
        final_rows = [[*point, values] for point, values in finals.items()]
        options.result.write_text(json.dumps({"grid": grid_rows, "finals": final_rows, "chosen": chosen}))
    return 0


def measure_fixed(point: Point, options: argparse.Namespace) -> float:
    """Return rank 0's score with these settings in a new world, broadcast to all ranks."""
    with_settings(dict(zip(VARIABLES, map(str, point), strict=True)))
    training = training_of(options.compute_ms)
    training.measure(2)
    score: float = hvd.broadcast_object(training.measure(options.steps))
    hvd.shutdown()
    return score


def tune(options: argparse.Namespace) -> Point:
    """Return the autotuner's choice."""
    with_settings({"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": str(options.steps)})
    training = training_of(options.compute_ms)
    while (state := json.loads(default_context.world.describe()))["autotune"] == "running":
        training.step()
        hvd.barrier()  # all ranks have received equal records here, so they leave the loop after equally many steps
    hvd.shutdown()
    return state["fusion_threshold"], state["cycle_time_us"] / 1000, state["chunk_bytes"]


def with_settings(environ: Mapping[str, str]) -> None:
    for name in (*VARIABLES, "HOROVOD_AUTOTUNE", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"):
        os.environ.pop(name, None)
    os.environ.update(environ)
    hvd.init()


@cache
def training_of(compute_ms: float) -> Training:
    """Return the arrays, made once for the whole run so that later worlds do not start with page faults."""
    return Training(compute_ms)


# The report.


def report(result: dict[str, Any], options: argparse.Namespace) -> None:
    grid = {tuple(row[:3]): row[3] for row in result["grid"]}
    finals = {tuple(row[:3]): median(row[3]) for row in result["finals"]}
    chosen = tuple(result["chosen"])
    best = max(finals.values())
    print(f"grid: {len(grid)} points, from {min(grid.values()) / 1e6:.0f} to {max(grid.values()) / 1e6:.0f} MB/s")
    for point, score in sorted(finals.items(), key=lambda item: -item[1]):
        names = " the tuner's choice" * (point == chosen) + " the starting values" * (point == START)
        print(f"  fusion {point[0] >> 10:6d} KiB, gathering {point[1]:4g} ms, chunk {point[2] >> 10:4d} KiB:"
              f" {score / 1e6:6.0f} MB/s, {score / best:.3f} of the best{names}")  # fmt: skip
    print(f"tuner / best grid point: {finals[chosen] / best:.3f}")
    print(f"tuner / starting values: {finals[chosen] / finals[START]:.3f}")
    if options.record:
        lines = [f"{{{f}, {round(t * 1000)}, {c}, {score:.4g}}},\n" for (f, t, c), score in sorted(grid.items())]
        options.record.write_text("".join(lines))


if __name__ == "__main__":
    sys.exit(main())
