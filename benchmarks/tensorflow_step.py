#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of communication in a custom training loop of a Keras network: ours and TensorFlow's.

    python benchmarks/tensorflow_step.py

One step is run by ranks that send nothing (the bound), by horovod.tensorflow with its tape, and by
tf.distribute.MultiWorkerMirroredStrategy. Each rank has one thread. All stay alive and take turns. The cost of
communication is a step's time above the bound. Prints a table and writes JSON lines.
"""

from __future__ import annotations

import sys

from benchkit.step_comparison import Comparison, run

COMPARISON = Comparison(
    name="tensorflow_step",
    worker="benchkit.tensorflow_step_worker",
    model="a dense network",
    peer="mirrored",
    layers=4,
    width=512,
    batch=32,
    batch_is="images",
    environment={"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
)

if __name__ == "__main__":
    sys.exit(run(COMPARISON, __doc__))
