# SPDX-License-Identifier: Apache-2.0
"""Rank of benchmarks/gpu.py for `jax`: it runs steps of a transformer and prints their time as a line of JSON.

Argument: a way (khorovod, nccl, alone). The rank begins when it reads a line from standard input. The ranks' rendezvous
and barriers use horovod.jax in every way.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import horovod.jax as hvd  # before JAX's backends start

import jax  # isort: skip

from benchkit import jax_ways

# Slow ways use fewer steps, because their times need less precision.
SLOW = sys.argv[1] == "nccl" or os.environ.get("HOROVOD_GPU_TRANSPORT") == "nccl"
STEPS, ROUNDS, WARM_STEPS = (5, 3, 2) if SLOW else (10, 5, 5)
WAYS = {"khorovod": jax_ways.khorovod, "nccl": jax_ways.psum, "alone": jax_ways.alone}


def main() -> None:
    way = sys.argv[1]
    print("loaded", flush=True)
    sys.stdin.readline()
    rank, ranks, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    shape = {"width": 768, "layers": 12, "batch": 32}
    hvd.init()
    function, params, tokens = WAYS[way](argparse.Namespace(rank=rank, ranks=ranks, port=port, **shape))
    step = jax.jit(function, donate_argnums=0)
    for _ in range(WARM_STEPS):
        params, value = step(params, tokens)
    times = []
    for _ in range(ROUNDS):
        # As in training, do not wait for the device after each step.
        jax.block_until_ready(params)
        hvd.barrier()
        began = time.perf_counter()
        for _ in range(STEPS):
            params, value = step(params, tokens)
        jax.block_until_ready(params)
        times.append((time.perf_counter() - began) / STEPS)
    loss = float(value.addressable_data(0))
    row = {"way": way, "ranks": ranks, "what": "jax", "model": "transformer", "loss": loss, **shape}
    print(json.dumps({**row, "median_s": statistics.median(times)}), flush=True)
    hvd.barrier()
    hvd.shutdown()


main()
