#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of communication in a training step of a small transformer in JAX: ours and JAX's own.

    python benchmarks/jax_step.py

One step is run by ranks that send nothing (the bound), by horovod.jax, and by jax.distributed with shard_map and psum
over Gloo. All stay alive and take turns. The cost of communication is a step's time above the bound. Prints a table and
writes JSON lines.
"""

from __future__ import annotations

import sys

from benchkit.step_comparison import Comparison, run

COMPARISON = Comparison(
    name="jax_step",
    worker="benchkit.jax_worker",
    model="a transformer",
    peer="gloo",
    layers=4,
    width=128,
    batch=4,
    batch_is="sequences of 64 tokens",
    environment={"JAX_PLATFORMS": "cpu"},
)

if __name__ == "__main__":
    sys.exit(run(COMPARISON, __doc__))
