#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the time of the codecs with the time of a copy of their input on one core.

    python benchmarks/codecs.py [--megabytes 40] [--rounds 15] [--ratio 0.01]
    python benchmarks/codecs.py --write    # also store the results and renew docs/compression.md

int8, one bit and top-k are codecs of the engine. PowerSGD is made of torch operations, and left out without torch. All
use one thread on one core. Each round times a copy to another buffer and then every codec, so that conditions are
equal. Prints medians of the processor time, which other programs disturb less than the wall clock, and of its ratio
to the copy of that round, with the quartiles.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from statistics import median, quantiles
from typing import Any

import numpy as np
from benchkit import compression_page, compression_results, machine

from horovod._engine import codec_flavour
from horovod.common.codecs import Codec, Int8Codec, OneBitCodec, TopKCodec, is_finite

Work = Callable[[], object]
_MATRICES, _ROWS = 5, 1_000  # matrices, and rows of each, into which PowerSGD divides the values


def timed(work: Work) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def works(count: int, ratio: float) -> dict[str, Work]:
    """Return the operations to time, by name. The first one is the copy."""
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
            # A training step no longer needs the gradient, so the candidate may overwrite it.
            f"{name} encode, feedback in place": lambda codec=codec, memory=memory: codec.encode(
                left, residual, left, memory
            ),
            f"{name} decode": lambda codec=codec, wire=wire: codec.decode(wire, count, 0.5, other),
            f"{name} decode_sum of 4": lambda codec=codec, wire=wire: codec.decode_sum([wire] * 4, count, 0.25, other),
        }
    if find_spec("torch") is not None:
        found |= power_sgd(values, residual)
    return found


def power_sgd(values: np.ndarray[Any, Any], residual: np.ndarray[Any, Any], rank: int = 4) -> dict[str, Work]:
    """Return the work of PowerSGD in a step, without the two exchanges between its parts."""
    import torch

    from horovod.common.compression_methods import PowerSGD
    from horovod.torch.codecs.low_rank import Factors

    torch.set_num_threads(1)
    columns = len(values) // (_MATRICES * _ROWS)
    count = _MATRICES * _ROWS * columns
    gradients, kept = torch.from_numpy(values[:count]), torch.from_numpy(residual[:count])
    factors = Factors([(_ROWS, columns)] * _MATRICES, PowerSGD(rank=rank))
    corrected, result = torch.ones_like(gradients), torch.ones_like(gradients)
    p, q = torch.empty(factors.p_count), factors.first_q(0, torch.device("cpu"))

    def step() -> None:
        torch.add(gradients, kept, out=corrected)
        factors.multiply(corrected, q, p)
        factors.orthonormalise(p)
        factors.multiply_transposed(corrected, p, q)
        factors.restore(p, q, result)
        corrected.sub_(result)

    return {f"powersgd({rank}) encode and decode, feedback": step} if count else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=40)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--ratio", type=float, default=0.01, help="of top-k")
    parser.add_argument("--write", action="store_true", help="into benchmarks/results and docs/compression.md")
    options = parser.parse_args()
    kind, about = machine.kind(), machine.facts()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    count = int(options.megabytes * 1e6 / 4)
    todo = works(count, options.ratio)
    times: dict[str, list[float]] = {name: [] for name in todo}
    for _ in range(options.rounds):
        for name, work in todo.items():
            times[name].append(timed(work))
    records = [record_of(name, seconds, times["copy"]) for name, seconds in times.items()]
    print(f"{count} float32, {codec_flavour()}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'':<40} {'ms':>8} {'of a copy':>10}   quartiles")
    for it in records:
        print(f"{it['way']:<40} {it['ms']:8.2f} {it['ratio']:10.2f}   {it['low']:.2f} to {it['high']:.2f}")
    if options.write:
        facts = {"machine": about, "values": count, "rounds": options.rounds, "instructions": codec_flavour()}
        found = [{"part": "codecs", "about": facts}, *records]
        compression_results.store(compression_results.path_for(kind), found)
        print(*compression_page.renew(), sep="\n")


def record_of(name: str, seconds: list[float], copy: list[float]) -> dict[str, Any]:
    """Return the median time of one piece of work, and the quartiles of its ratio to the copy of the same round."""
    low, middle, high = quantiles([mine / other for mine, other in zip(seconds, copy, strict=True)], n=4)
    found = {"ms": median(seconds) * 1e3, "ratio": middle, "low": low, "high": high}
    return {"part": "codecs", "way": name} | {key: round(value, 4) for key, value in found.items()}


if __name__ == "__main__":
    main()
