# SPDX-License-Identifier: Apache-2.0
"""Train in rounds over a slow link, and report digests of the weights after each round and the slowest step."""

import hashlib
import sys
import time

import numpy as np
from faultkit.reports import report

import horovod.numpy as hvd
from horovod.common.local_sgd import Core, Options

ROUNDS, EVERY, ROWS = 4, 4, 60_000  # 240 KB of weights
deadline_s = float(sys.argv[1])


class Model:
    """Weights in NumPy arrays; the core gets copies."""

    def __init__(self) -> None:
        self.arrays = {f"layers.{number}.w": np.full(ROWS // 2, 1.0 + number, np.float32) for number in range(2)}

    def names_and_shapes(self):
        return [(name, array.shape) for name, array in self.arrays.items()]

    def read(self, names):
        return [self.arrays[name].copy() for name in names]

    def write(self, values):
        for name, value in values.items():
            self.arrays[name] = value.copy()

    def digest(self):
        return hashlib.sha256(b"".join(array.tobytes() for array in self.arrays.values())).hexdigest()


hvd.init()
model = Model()
core = Core(model, Options(every=EVERY, wire="int8", deadline_s=deadline_s))
core.begin()
random = np.random.default_rng(hvd.rank())
digests, slowest = [], 0.0
for number in range(1, ROUNDS * EVERY + 1):
    for name, array in model.arrays.items():
        model.arrays[name] = array - 0.01 * random.standard_normal(array.shape).astype(np.float32)
    began = time.monotonic()
    core.step()
    slowest = max(slowest, time.monotonic() - began)
    if number % EVERY == 0:
        digests.append(model.digest())
        report("round", number=number // EVERY)
core.finish()
digests.append(model.digest())
hvd.shutdown()
report("finished", slowest=slowest, digests=digests)
