# SPDX-License-Identifier: Apache-2.0
"""Rank of benchmarks/tensorflow_ops.py: it measures allreduces inside tf.function, in three ways that take turns.

It prints one line of JSON: for each size, way and turn the seconds of one allreduce.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

WARM_UP = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    for number in ("rounds", "calls", "chain"):
        parser.add_argument(f"--{number}", type=int, required=True)
    parser.add_argument("--elements", type=int, nargs="+", required=True)
    options = parser.parse_args()
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # created first, because it starts TensorFlow's servers
    import horovod.tensorflow.mpi_ops as hvd

    hvd.init()
    print(json.dumps([measure(tf, hvd, strategy, elements, options) for elements in options.elements]), flush=True)


def measure(tf: Any, hvd: Any, strategy: Any, elements: int, options: argparse.Namespace) -> dict[str, list[float]]:
    x = tf.ones([elements])

    def chained(one: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def function(value: Any) -> Any:
            value = tf.identity(value)  # puts the value on a device, which tf.distribute requires
            for _ in range(options.chain):
                value = one(value) * 0.5
            return value

        return function

    def theirs(value: Any) -> Any:
        return strategy.run(chained(lambda one: tf.distribute.get_replica_context().all_reduce("sum", one)), [value])

    ways = {
        "nothing": tf.function(chained(tf.identity)),
        "khorovod": tf.function(chained(lambda one: hvd._allreduce(one, op=hvd.Sum))),
        "tf.distribute": tf.function(theirs),
    }
    for way, function in ways.items():
        expected = 1.0 if way != "nothing" else 0.5**options.chain
        result = float(function(x)[0])
        if abs(result - expected) > 1e-6:
            raise RuntimeError(f"{way} gave {result} instead of {expected}")
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(options.rounds):
        for way, function in ways.items():
            for _ in range(WARM_UP):
                function(x)
            start = time.perf_counter()
            for _ in range(options.calls):
                function(x)
            times[way].append((time.perf_counter() - start) / options.calls / options.chain)
    return times


if __name__ == "__main__":
    main()
