# SPDX-License-Identifier: Apache-2.0
"""Rank of benchmarks/keras_step.py: it trains a Keras model in one of three ways, through model.fit, on request.

It reads `run COUNT` lines from standard input, and answers each with the seconds of every step, as a line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from typing import Any

# Frameworks print to standard output, so answers use a duplicate of it, and all other output goes to the log.
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

FEATURES, RATE = 256, 1e-3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["alone", "khorovod", "tf.distribute"])
    for number in ("rank", "ranks", "port", "width", "layers", "batch"):
        parser.add_argument(f"--{number}", type=int, required=True)
    options = parser.parse_args()
    if options.way == "tf.distribute":
        # Each rank of tf.distribute listens on a port: the one that was found free, and those after it.
        workers = [f"127.0.0.1:{options.port + rank}" for rank in range(options.ranks)]
        task = {"type": "worker", "index": options.rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    model, data, clock = built(options)
    history = model.fit(data, steps_per_epoch=5, epochs=1, verbose=0)
    answer({"loss": float(history.history["loss"][-1])})
    for line in sys.stdin:
        steps = int(line.split()[1])
        clock.times.clear()
        # The first step of a fit includes the start of its iterator, so it is left out.
        model.fit(data, steps_per_epoch=steps + 1, epochs=1, verbose=0, callbacks=[clock])
        answer({"times": clock.times[1:]})


def answer(message: dict[str, Any]) -> None:
    print(json.dumps(message), file=_answers, flush=True)


def built(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Return a compiled model, endless data, and a callback that measures each batch."""
    import numpy as np
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    together = options.way == "tf.distribute"
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if together else None
    keras = tf.keras
    with strategy.scope() if strategy else contextlib.nullcontext():
        first = keras.layers.Input((FEATURES,))
        hidden = [
            keras.layers.Dense(options.width, "relu", kernel_initializer=keras.initializers.GlorotUniform(seed=layer))
            for layer in range(options.layers)
        ]
        last = keras.layers.Dense(10, kernel_initializer=keras.initializers.GlorotUniform(seed=99))
        model = keras.Sequential([first, *hidden, last])
        optimizer = keras.optimizers.SGD(RATE)
        if options.way == "khorovod":
            import horovod.tensorflow.keras as hvd

            hvd.init()
            optimizer = hvd.DistributedOptimizer(optimizer)
        model.compile(loss="mse", optimizer=optimizer)
    random = np.random.default_rng(options.rank)
    x = random.normal(size=(options.batch, FEATURES)).astype("float32")
    y = random.normal(size=(options.batch, 10)).astype("float32")
    if together:
        # fit treats this batch as that of all ranks and splits it, so that each rank gets as many rows as in the other
        # ways.
        x, y = (np.concatenate([part] * options.ranks) for part in (x, y))
    data = tf.data.Dataset.from_tensors((x, y)).cache().repeat()
    if together:
        off = tf.data.Options()
        off.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        data = data.with_options(off)
    return model, data, clock_of(keras)


def clock_of(keras: Any) -> Any:
    class Clock(keras.callbacks.Callback):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.times: list[float] = []
            self._start = 0.0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self._start = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.times.append(time.perf_counter() - self._start)

    return Clock()


if __name__ == "__main__":
    main()
