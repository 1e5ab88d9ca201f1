# SPDX-License-Identifier: Apache-2.0
"""What a DistributedOptimizer adds to an optimizer of Keras 2 (tf-keras, or TensorFlow's own up to 2.15).

Keras reduces over the replicas of a tf.distribute strategy in `aggregate_gradients`, in legacy optimizers
`_aggregate_gradients`, and a LossScaleOptimizer calls it before it looks for infinities: the right place for us too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from horovod._keras.reduction import GradientReduction, acts_alone

Pairs = list[tuple[Any, Any]]


class Keras2Optimizer:
    """The first base of the class of a distributed optimizer; the second is that of the optimizer it was made from."""

    _horovod: GradientReduction
    _HAS_AGGREGATE_GRAD = True  # of legacy optimizers: apply_gradients takes experimental_aggregate_gradients

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of a variable on its rank."""
        self._horovod.register_local_var(var)

    def aggregate_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Pairs:
        return self._aggregate_gradients(grads_and_vars)

    def _aggregate_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Pairs:
        """Called by a LossScaleOptimizer: afterwards all ranks find infinities, or none does."""
        pairs = list(grads_and_vars)
        reduction = self._horovod
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        if reduction.backward_passes_per_step == 1:
            return list(zip(reduction(gradients, variables), variables, strict=True))
        return list(zip(_spoiled_together(reduction, gradients), variables, strict=True))

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        if not pairs:
            return super().apply_gradients(pairs, *args, **kwargs)  # type: ignore[misc]
        if self._horovod.backward_passes_per_step > 1:
            return self._add_pass(pairs)
        if not _wants_aggregation(kwargs):
            return super().apply_gradients(pairs, *args, **kwargs)  # type: ignore[misc]
        return super().apply_gradients(self._aggregate_gradients(pairs), *args, **self._aggregated(kwargs))  # type: ignore[misc]

    def _add_pass(self, pairs: Pairs) -> Any:
        """Add the gradients of a pass; the last pass of a step applies the sums."""
        reduction = self._horovod
        pairs = [pair for pair in pairs if pair[0] is not None]
        variables = [variable for _, variable in pairs]
        with tf.init_scope():
            self._build_on(variables)
            passes = reduction.__dict__.setdefault("passes", _Passes())
            passes.make(variables)
        sums = [passes.sums[variable.ref()] for variable in variables]
        for total, (gradient, _) in zip(sums, pairs, strict=True):
            total.assign_add(_summable(reduction, gradient))

        def step() -> None:
            reduced = reduction([total / reduction.divisor for total in sums], variables)
            super(Keras2Optimizer, self).apply_gradients(  # type: ignore[misc]
                list(zip(reduced, variables, strict=True)), **self._aggregated({})
            )
            passes.count.assign(0)
            for total in sums:
                total.assign(tf.zeros_like(total))

        def wait() -> None:
            passes.count.assign_add(1)
            self.iterations.assign_add(1)  # type: ignore[attr-defined]

        tf.__internal__.smart_cond.smart_cond(passes.count + 1 >= reduction.backward_passes_per_step, step, wait)
        return self.iterations  # type: ignore[attr-defined]

    def _build_on(self, variables: Sequence[Any]) -> None:
        create = getattr(self, "_create_all_weights", None) or self.build  # type: ignore[attr-defined]
        create(variables)

    def _aggregated(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments that say: this has been reduced."""
        skip = {"experimental_aggregate_gradients": False} if _is_legacy(self) else {"skip_gradients_aggregation": True}
        dropped = ("experimental_aggregate_gradients", "skip_gradients_aggregation")
        return {name: value for name, value in kwargs.items() if name not in dropped} | skip


class _Passes:
    """Sums of the gradients of several backward passes, kept where Keras does not look and so does not save them."""

    def __init__(self) -> None:
        self.count: Any = None
        self.sums: dict[Any, Any] = {}

    def make(self, variables: Sequence[Any]) -> None:
        if self.count is None:
            self.count = tf.Variable(0, trainable=False, dtype=tf.int64, name="passes")
        for variable in variables:
            if variable.ref() not in self.sums:
                zeros = tf.zeros(variable.shape, variable.dtype)
                self.sums[variable.ref()] = tf.Variable(zeros, trainable=False, name="sum")


def _is_legacy(optimizer: Any) -> bool:
    return hasattr(optimizer, "_create_all_weights")


def _wants_aggregation(kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("experimental_aggregate_gradients", True)) and not kwargs.get("skip_gradients_aggregation")


def _summable(reduction: GradientReduction, gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices) and not reduction.sparse_as_dense:
        raise ValueError("Sparse gradients cannot be summed over several backward passes: pass sparse_as_dense=True")
    return tf.convert_to_tensor(gradient)


def _spoiled_together(reduction: GradientReduction, gradients: Sequence[Any]) -> list[Any]:
    """The gradients of this rank, not finite if those of any rank are not: then all ranks skip the pass."""
    if acts_alone(reduction.process_set):
        return list(gradients)
    tensors = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(one)) for one in tensors])
    everywhere = reduction.all_finite(tf.cast(finite, tf.float32))
    spoil = tf.where(everywhere > 0, 0.0, float("nan"))
    return [None if one is None else tf.convert_to_tensor(one) + tf.cast(spoil, one.dtype) for one in gradients]
