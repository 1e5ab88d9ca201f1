# SPDX-License-Identifier: Apache-2.0
"""Int8 codec by TensorFlow operations: a float32 scale for each block of values, then one int8 for each value."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from horovod.tensorflow.compressing.loops import concatenated, summed

Tensor: TypeAlias = Any  # tf.Tensor

_STEPS = 127.0  # quantization steps between zero and the largest absolute value of a block


def message_bytes(count: int, block: int) -> int:
    """Return the length of a message of `count` values."""
    return 4 * -(-count // block) + count


def encode(values: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Return the message for a flat float32 tensor, and the quantization error."""
    count = tf.size(values)
    blocks = (count + block - 1) // block
    rows = tf.reshape(tf.pad(values, [[0, blocks * block - count]]), [blocks, block])
    largest = tf.reduce_max(tf.abs(rows), axis=1)
    is_finite = tf.reduce_all(tf.math.is_finite(rows), axis=1)
    inverse = _STEPS / largest
    is_zero = tf.math.is_inf(inverse)  # the block is zero, or too small for a scale
    # Divide in float64. TensorFlow turns division by a constant into multiplication, which in float64 does not change
    # the rounded result.
    scale = tf.cast(tf.cast(largest, tf.float64) / _STEPS, tf.float32)
    scale = tf.where(is_finite, tf.where(is_zero, 0.0, scale), np.float32(np.nan))
    factor = tf.where(is_finite & ~is_zero, inverse, 0.0)
    clean = tf.where(is_finite[:, None], rows, 0.0)
    quanta = tf.clip_by_value(tf.round(clean * factor[:, None]), -_STEPS, _STEPS)
    left = tf.reshape(rows - quanta * scale[:, None], [-1])[:count]
    sent = tf.cast(tf.reshape(quanta, [-1])[:count], tf.int8)
    return tf.concat([tf.reshape(tf.bitcast(scale, tf.uint8), [-1]), tf.bitcast(sent, tf.uint8)], 0), left


def decode(message: Tensor, count: Tensor, block: int) -> Tensor:
    """Return the values of a message."""
    blocks = (count + block - 1) // block
    scales = tf.bitcast(tf.reshape(message[: 4 * blocks], [blocks, 4]), tf.float32)
    quanta = tf.cast(tf.bitcast(message[4 * blocks :], tf.int8), tf.float32)
    rows = tf.reshape(tf.pad(quanta, [[0, blocks * block - count]]), [blocks, block])
    return tf.reshape(rows * scales[:, None], [-1])[:count]


def decode_sum(messages: Tensor, count: Tensor, block: int) -> Tensor:
    """Return the sum of the values of equally long messages, the rows of a matrix, added in their order."""
    return summed(tf.shape(messages)[0], lambda number: decode(messages[number], count, block))


def encode_chunks(values: Tensor, cuts: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Return the concatenated messages of consecutive chunks of a tensor, and the quantization error."""
    messages, left = concatenated(
        tf.size(cuts) - 1,
        [tf.uint8, tf.float32],
        lambda number: encode(values[cuts[number] : cuts[number + 1]], block),
    )
    return messages, left


def decode_chunks(messages: Tensor, cuts: Tensor, block: int) -> Tensor:
    """Return the values of concatenated messages of consecutive chunks."""
    counts = cuts[1:] - cuts[:-1]
    ends = tf.cumsum(4 * ((counts + block - 1) // block) + counts)
    starts = tf.concat([[0], ends], 0)
    [values] = concatenated(
        tf.size(counts),
        [tf.float32],
        lambda number: [decode(messages[starts[number] : ends[number]], counts[number], block)],
    )
    return values
