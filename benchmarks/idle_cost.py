#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure if hvd.init() alone slows a program that only computes: interleaved pairs of work with and without it.

    horovodrun -np 2 python benchmarks/idle_cost.py [--pairs 30] [--seconds 0.5]

Both ranks work at the same time, as in training. Prints the mean change in percent with its 95 % interval, by the wall
clock and by the processor time of the working thread (which other programs on the machine disturb less).
"""

from __future__ import annotations

import argparse
import math
import time
from statistics import mean, stdev

import numpy as np

import horovod.numpy as hvd

Times = tuple[float, float]  # seconds of the wall clock and of the processor

_MATRIX = np.random.default_rng(0).random((96, 96))


def work(rounds: int) -> Times:
    """Run Python and NumPy code in turns, on sizes that use one thread. Return the times."""
    wall, processor = time.perf_counter(), time.thread_time()
    for _ in range(rounds):
        np.linalg.slogdet(_MATRIX)
        sum(range(2000))
    return time.perf_counter() - wall, time.thread_time() - processor


def rounds_for(seconds: float) -> int:
    work(200)
    return max(1, int(200 * seconds / work(200)[0]))


def with_engine(rounds: int) -> Times:
    hvd.init()
    hvd.barrier()
    times = work(rounds)
    hvd.barrier()
    hvd.shutdown()
    return times


def without_engine(rounds: int) -> Times:
    """Return the times of the work without an engine. A world ends just before, so that ranks start together."""
    hvd.init()
    hvd.barrier()
    hvd.shutdown()
    return work(rounds)


def change(pairs: list[tuple[Times, Times]], clock: int) -> tuple[float, float]:
    """Return the mean change in percent, and half of its 95 % interval (normal: use twenty pairs or more)."""
    logs = [math.log(engine[clock] / none[clock]) for engine, none in pairs]
    return 100 * mean(logs), 100 * 1.96 * stdev(logs) / math.sqrt(len(logs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one piece of work")
    options = parser.parse_args()
    rounds = rounds_for(options.seconds)
    pairs = []
    for number in range(options.pairs):  # the order alternates, so that a machine that slowly warms up favours neither
        if number % 2:
            engine = with_engine(rounds)
            pairs.append((engine, without_engine(rounds)))
        else:
            none = without_engine(rounds)
            pairs.append((with_engine(rounds), none))
    hvd.init()
    for clock, name in enumerate(("wall clock", "processor time")):
        mine = np.array(change(pairs, clock))
        both = hvd.allgather(mine[None, :])
        if hvd.rank() == 0:
            for rank, (percent, interval) in enumerate(both):
                print(f"rank {rank}, {name}: {percent:+.2f} % ± {interval:.2f} % ({options.pairs} pairs)")
    hvd.shutdown()


if __name__ == "__main__":
    main()
