# SPDX-License-Identifier: Apache-2.0
"""Batch normalization over the batches of all ranks. It uses only the public API of Keras 2 and Keras 3.

Every value has equal weight on every rank, because ranks send sums and the number of values, not means. Batches may
differ in size and may be empty, and a rank that has joined adds nothing.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.gradients import acts_alone
from horovod.tensorflow.mpi_ops import Average as Average
from horovod.tensorflow.mpi_ops import Sum
from horovod.tensorflow.mpi_ops import rank as rank
from horovod.tensorflow.mpi_ops import size as size
from horovod.tensorflow.reductions import allreduce


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """Layer like tf.keras.layers.BatchNormalization, whose training statistics cover the batches of all ranks.

    Every sample counts alike, also if ranks have batches of different sizes.

    Args:
        fused: Must be False.
        **kwargs: Arguments of tf.keras.layers.BatchNormalization, and `process_set`, the ranks whose batches count,
            which is not part of the layer's config.

    Raises:
        ValueError: `fused` is not False.

    Example:
        >>> layer = hvd.SyncBatchNormalization()
        >>> layer(tf.ones([4, 3]), training=True).shape.rank  # on 2 ranks: 2
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization has no fused implementation: pass fused=False, or leave it out")
        # Taken from kwargs to keep Horovod's signature.
        process_set: ProcessSet = kwargs.pop("process_set", global_process_set)
        super().__init__(**kwargs)
        self._process_set = process_set

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        training = False if training is None or not self.trainable else training
        wide = tf.cast(inputs, tf.float32) if inputs.dtype in (tf.float16, tf.bfloat16) else inputs
        axis = self.axis[0] if isinstance(self.axis, (list, tuple)) else self.axis
        axis %= len(inputs.shape)
        if tf.is_tensor(training):
            mean, variance = tf.cond(
                tf.cast(training, tf.bool), lambda: self._train(wide, axis, mask), lambda: self._moving(wide.dtype)
            )
        else:
            mean, variance = self._train(wide, axis, mask) if training else self._moving(wide.dtype)
        shape = [1] * len(inputs.shape)
        shape[axis] = inputs.shape[axis]

        def spread(vector: Any) -> Any:
            return None if vector is None else tf.reshape(tf.cast(vector, wide.dtype), shape)

        result = tf.nn.batch_normalization(
            wide, spread(mean), spread(variance), spread(self.beta), spread(self.gamma), self.epsilon
        )
        return tf.cast(result, inputs.dtype)

    def _train(self, inputs: Any, axis: int, mask: Any) -> tuple[Any, Any]:
        """Return mean and variance of the batches of all ranks, and update the moving statistics."""
        sums = _local_sums(inputs, axis, mask)
        if not acts_alone(self._process_set):
            sums = allreduce(sums, op=Sum, process_set=self._process_set)
        total, squares, count = tf.unstack(sums)
        mean = tf.math.divide_no_nan(total, count)
        variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0)
        for moving, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
            old = tf.cast(moving, sums.dtype)
            # If no rank has any value, the moving statistics stay unchanged.
            followed = tf.where(count > 0, old * self.momentum + new * (1 - self.momentum), old)
            moving.assign(tf.cast(followed, moving.dtype))
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)

    def _moving(self, dtype: Any) -> tuple[Any, Any]:
        return tf.cast(self.moving_mean, dtype), tf.cast(self.moving_variance, dtype)


def _local_sums(inputs: Any, axis: int, mask: Any) -> Any:
    """Return three rows in float64, with each channel's sum of values, sum of squares, and number of values.

    The sums are computed from mean and deviations, so that float32 need not hold squares of values far from zero.
    """
    others = [index for index in range(len(inputs.shape)) if index != axis]
    weights = None
    if mask is None:
        number = tf.repeat(tf.reduce_prod(tf.gather(tf.shape(inputs, tf.int64), others)), inputs.shape[axis])
    else:
        shape = tf.concat([tf.shape(mask), [1] * (len(inputs.shape) - len(mask.shape))], 0)
        weights = tf.reshape(tf.cast(mask, inputs.dtype), shape)
        number = tf.reduce_sum(weights * tf.ones_like(inputs), others)

    def total(values: Any) -> Any:
        return tf.reduce_sum(values if weights is None else weights * values, others, keepdims=True)

    sums = total(inputs)
    mean = tf.math.divide_no_nan(sums, tf.reshape(tf.cast(number, inputs.dtype), tf.shape(sums)))
    deviations = total(tf.square(inputs - mean))
    mean, deviations = (tf.cast(tf.reshape(each, [-1]), tf.float64) for each in (mean, deviations))
    number = tf.cast(number, tf.float64)
    return tf.stack([mean * number, deviations + tf.square(mean) * number, number])
