#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of communication in a step of a Keras model's fit: ours and tf.distribute's.

    python benchmarks/keras_step.py

One model is trained by ranks that send nothing (the bound), with horovod.tensorflow.keras, and under
MultiWorkerMirroredStrategy. All stay alive and take turns; each rank has one thread. All three use tf-keras, because
Keras 3 does not support that strategy. The cost of communication is a step's time above the bound.
Prints a table and writes JSON lines.
"""

from __future__ import annotations

import sys

from benchkit.step_comparison import Comparison, run

COMPARISON = Comparison(
    name="keras_step",
    worker="benchkit.keras_worker",
    model="fit",
    peer="tf.distribute",
    layers=8,
    width=512,
    batch=32,
    batch_is="rows",
    environment={
        "TF_USE_LEGACY_KERAS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    },
)

if __name__ == "__main__":
    sys.exit(run(COMPARISON, __doc__))
