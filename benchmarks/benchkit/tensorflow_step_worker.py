# SPDX-License-Identifier: Apache-2.0
"""Rank of benchmarks/tensorflow_step.py: it trains a small Keras network and reports how long each step took."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("alone", "khorovod", "mirrored"))
    for name in ("rank", "ranks", "port", "width", "layers", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)  # a second thread for operations that wait
    step = {"alone": alone, "khorovod": khorovod, "mirrored": mirrored}[options.way](options)
    loss = 0.0
    for _ in range(5):
        loss = float(step())
    tell({"loss": loss})
    for line in sys.stdin:
        times = []
        for _ in range(int(line.split()[1])):
            start = time.perf_counter()
            float(step())
            times.append(time.perf_counter() - start)
        tell({"times": times})


def tell(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def network(options: argparse.Namespace) -> tuple[Any, Any]:
    tf.keras.utils.set_random_seed(1)
    layers = [tf.keras.layers.Input((options.width,))]
    layers += [tf.keras.layers.Dense(options.width, activation="relu") for _ in range(options.layers)]
    model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(10)])
    optimizer = tf.keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def batch(options: argparse.Namespace) -> tuple[tf.Tensor, tf.Tensor]:
    """Return this rank's share of the data, which is equal for all ways."""
    generator = tf.random.Generator.from_seed(100 + options.rank)
    images = generator.normal([options.batch, options.width])
    return images, generator.uniform([options.batch], maxval=10, dtype=tf.int64)


def losses(model: Any, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))


def descend(model: Any, optimizer: Any, tape: Any, loss: tf.Tensor) -> None:
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def with_tape(options: argparse.Namespace, wrap: Callable[[Any], Any]) -> Callable[[], tf.Tensor]:
    model, optimizer = network(options)
    images, labels = batch(options)

    @tf.function
    def step() -> tf.Tensor:
        with wrap(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(losses(model, images, labels))
        descend(model, optimizer, tape, loss)
        return loss

    return step


def alone(options: argparse.Namespace) -> Callable[[], tf.Tensor]:
    return with_tape(options, lambda tape: tape)


def khorovod(options: argparse.Namespace) -> Callable[[], tf.Tensor]:
    import horovod.tensorflow as hvd

    hvd.init()
    return with_tape(options, hvd.DistributedGradientTape)


def mirrored(options: argparse.Namespace) -> Callable[[], tf.Tensor]:
    workers = [f"127.0.0.1:{options.port + rank}" for rank in range(options.ranks)]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": options.rank}}
    )
    ring = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)
    with strategy.scope():
        model, optimizer = network(options)
    images, labels = batch(options)

    def replica() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(
                losses(model, images, labels), global_batch_size=options.batch * options.ranks
            )
        descend(model, optimizer, tape, loss)
        return loss * options.ranks  # this rank's own loss, as in the other ways

    @tf.function
    def step() -> tf.Tensor:
        return strategy.experimental_local_results(strategy.run(replica))[0]

    return step


if __name__ == "__main__":
    main()
