# SPDX-License-Identifier: Apache-2.0
"""Batch normalization over the batches of all ranks, for Keras 2 and Keras 3: only what both make public is used."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.common.process_sets import global_process_set
from horovod.tensorflow.gradients import acts_alone
from horovod.tensorflow.mpi_ops import Average
from horovod.tensorflow.mpi_ops import Sum as Sum
from horovod.tensorflow.mpi_ops import rank as rank
from horovod.tensorflow.mpi_ops import size as size
from horovod.tensorflow.reductions import allreduce


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """tf.keras.layers.BatchNormalization whose statistics in training are those of all ranks, with equal weights."""

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization has no fused implementation: pass fused=False, or leave it out")
        super().__init__(**kwargs)

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
        """Statistics of this batch on all ranks; the moving ones follow them."""
        others = [index for index in range(len(inputs.shape)) if index != axis]
        if mask is None:
            mean, square = tf.reduce_mean(inputs, others), tf.reduce_mean(tf.square(inputs), others)
        else:
            shape = tf.concat([tf.shape(mask), [1] * (len(inputs.shape) - len(mask.shape))], 0)
            weights = tf.reshape(tf.cast(mask, inputs.dtype), shape)
            total = tf.reduce_sum(weights * tf.ones_like(inputs), others)
            mean = tf.math.divide_no_nan(tf.reduce_sum(weights * inputs, others), total)
            square = tf.math.divide_no_nan(tf.reduce_sum(weights * tf.square(inputs), others), total)
        if not acts_alone(global_process_set):
            mean, square = tf.unstack(allreduce(tf.stack([mean, square]), op=Average))
        variance = tf.maximum(square - tf.square(mean), 0)
        for moving, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
            moving.assign(moving * self.momentum + tf.cast(new, moving.dtype) * (1 - self.momentum))
        return mean, variance

    def _moving(self, dtype: Any) -> tuple[Any, Any]:
        return tf.cast(self.moving_mean, dtype), tf.cast(self.moving_variance, dtype)
