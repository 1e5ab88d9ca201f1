# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's handwritten digits (part of the package, no download) and a Keras network that reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import horovod.tensorflow as hvd


def load(dtype: str = "float32") -> tuple[Any, Any, Any, Any]:
    """Return training images and labels, then those for validation. The split is equal on every rank."""
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    images, labels = bunch.images[order, ..., None].astype(dtype) / 16, bunch.target[order]
    cut = len(labels) * 4 // 5
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


def batches(images: Any, labels: Any, batch_size: int, epoch: int) -> tf.data.Dataset:
    """Return this rank's batches of an epoch. All ranks shuffle alike, and each takes every size-th image."""
    order = np.random.default_rng(epoch).permutation(len(labels))
    order = order[: len(order) // (batch_size * hvd.size()) * batch_size * hvd.size()]
    mine = order[hvd.rank() :: hvd.size()]
    return tf.data.Dataset.from_tensor_slices((images[mine], labels[mine])).batch(batch_size)


def make_model(**output: Any) -> Any:
    """Return two convolutions and two dense layers. `output` are options of the last layer."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, **output),
        ]
    )


def validate(model: Any, images: Any, labels: Any) -> tuple[float, float]:
    """Return loss and accuracy over all ranks' shares of the validation images."""
    mine = slice(hvd.rank(), None, hvd.size())
    logits = tf.cast(model(images[mine], training=False), tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels[mine], logits)
    right = tf.cast(tf.equal(tf.argmax(logits, 1), labels[mine]), tf.float32)
    sums = tf.stack([tf.reduce_sum(losses), tf.reduce_sum(right), tf.cast(len(labels[mine]), tf.float32)])
    loss, accurate, count = hvd.allreduce(sums, op=hvd.Sum).numpy()
    return float(loss / count), float(accurate / count)
