#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What communication costs in a training step of a Keras network in a loop of one's own: ours against TensorFlow's.

    python benchmarks/tensorflow_step.py

The same step is run by ranks that send nothing (the bound), by horovod.tensorflow with its tape, and by
tf.distribute.MultiWorkerMirroredStrategy. One thread for each rank. All are alive throughout and take turns. The cost
of communication is a step's time above the bound. Prints a table and writes JSON lines.
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
