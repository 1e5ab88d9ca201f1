#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long do the engine's codecs take, compared with a copy of their input on the same core?

    python benchmarks/codecs.py [--megabytes 40] [--rounds 15] [--ratio 0.01]

One thread on one core. Each round times a copy to another buffer and then every codec, so that all meet the same
machine. Prints medians of the processor time, which other programs disturb less than the wall clock, and of its ratio
to the copy of the same round, with the quartiles.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Callable
from statistics import median, quantiles

import numpy as np

from horovod._engine import codec_flavour
from horovod.common.codecs import Codec, Int8Codec, OneBitCodec, TopKCodec, is_finite

Work = Callable[[], object]


def timed(work: Work) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def works(count: int, ratio: float) -> dict[str, Work]:
    """What is timed, by name; the first is the copy."""
    random = np.random.default_rng(0)
    values = random.standard_normal(count, np.float32)
    residual = random.standard_normal(count, np.float32) * np.float32(0.1)
    left, other = np.ones_like(values), np.ones_like(values)
    found: dict[str, Work] = {
        "copy": lambda: ctypes.memmove(other.ctypes.data, values.ctypes.data, values.nbytes),
        "is_finite": lambda: is_finite(values),
    }
    named: dict[str, Codec] = {"int8": Int8Codec(), "onebit": OneBitCodec(), f"topk({ratio:g})": TopKCodec(ratio)}
    for name, codec in named.items():
        memory = np.ones(codec.wire_bytes(count), np.uint8)
        wire = codec.encode(values, residual).copy()
        found |= {
            f"{name} encode": lambda codec=codec, memory=memory: codec.encode(values, wire=memory),
            f"{name} encode, feedback": lambda codec=codec, memory=memory: codec.encode(values, residual, left, memory),
            # In a training step the candidate may take the place of the gradient, which is not needed any more.
            f"{name} encode, feedback in place": lambda codec=codec, memory=memory: codec.encode(
                left, residual, left, memory
            ),
            f"{name} decode": lambda codec=codec, wire=wire: codec.decode(wire, count, 0.5, other),
            f"{name} decode_sum of 4": lambda codec=codec, wire=wire: codec.decode_sum([wire] * 4, count, 0.25, other),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=40)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ratio", type=float, default=0.01, help="of top-k")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    count = int(options.megabytes * 1e6 / 4)
    todo = works(count, options.ratio)
    times: dict[str, list[float]] = {name: [] for name in todo}
    for _ in range(options.rounds):
        for name, work in todo.items():
            times[name].append(timed(work))
    print(f"{count} float32, {codec_flavour()}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'':<36} {'ms':>8} {'of a copy':>10}   quartiles")
    for name, seconds in times.items():
        ratios = [mine / copy for mine, copy in zip(seconds, times["copy"], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        print(f"{name:<36} {median(seconds) * 1e3:8.2f} {median(ratios):10.2f}   {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main()
