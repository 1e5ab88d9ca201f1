# SPDX-License-Identifier: Apache-2.0
"""Methods that a DistributedOptimizer adds to an optimizer of Keras 2 (tf-keras, or TensorFlow's own up to 2.15).

Gradients are reduced where the optimizer computes them (`minimize`, `compute_gradients`), and otherwise where they are
applied. For a tf.distribute strategy, Keras reduces over the replicas in `aggregate_gradients`; in legacy optimizers
the method is called `_aggregate_gradients`. A LossScaleOptimizer calls it before it checks for infinities.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from horovod._keras.copies import refuse_copy
from horovod._keras.reduction import MEMORIES, GradientReduction, acts_alone, follow_memories
from horovod.common.keras_optimizers import is_legacy
from horovod.tensorflow.accumulation import ops_of
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager

Pairs = list[tuple[Any, Any]]


class Keras2Optimizer:
    """First base of a distributed optimizer's class; the second base is the original optimizer's class."""

    _horovod: GradientReduction
    _agg_helper: LocalGradientAggregationHelperEager | None = None  # sums of gradients over several passes
    _passes_done: Any = None  # number of passes; set only while the counter holds the number of updates
    _shown_iterations: Any = None  # value that `iterations` returns in place of the counter
    # Tells Keras that a legacy optimizer's apply_gradients takes experimental_aggregate_gradients.
    _HAS_AGGREGATE_GRAD = True

    def _reduce_by(self, reduction: GradientReduction) -> None:
        """Set the reduction. Called once, when the optimizer is created."""
        self._horovod = reduction
        reduction.key = _reference
        follow_memories(self, reduction)
        if reduction.backward_passes_per_step > 1:
            self._agg_helper = LocalGradientAggregationHelperEager(
                reduction.backward_passes_per_step,
                reduction,
                reduction.sparse_as_dense,
                reduction.average_aggregated_gradients,
                reduction.process_set,
                reduction.scale_local_gradients,
            )

    @property
    def iterations(self) -> Any:
        return super().iterations if self._shown_iterations is None else self._shown_iterations  # type: ignore[misc]

    @iterations.setter
    def iterations(self, counter: Any) -> None:
        super(Keras2Optimizer, type(self)).iterations.fset(self, counter)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        refuse_copy(self)

    def __deepcopy__(self, memo: Any) -> Any:  # legacy optimizers define __deepcopy__, too
        refuse_copy(self)

    def register_local_var(self, var: Any) -> None:
        """Exclude the gradient of a variable from the reduction."""
        self._horovod.register_local_var(var)

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        """Return the children to save: checkpoints contain the compression's memories, saved models do not.

        Saved models must not depend on Horovod.
        """
        children: dict[str, Any] = super()._trackable_children(save_type, **kwargs)  # type: ignore[misc]
        return {name: one for name, one in children.items() if save_type == "checkpoint" or name != MEMORIES}

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> Pairs:
        """Return Keras's (gradient, variable) pairs, reduced over all ranks.

        `apply_gradients` does not reduce them again.

        With several backward passes for each step, the last pass returns the reduced sums; only those are applied.
        """
        return self._reduced(super().compute_gradients(loss, var_list, tape=tape))  # type: ignore[misc]

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Pairs:
        """Compute reduced gradients under the name that legacy optimizers use."""
        return self.compute_gradients(loss, var_list, tape=tape)

    def aggregate_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Pairs:
        return self._aggregate_gradients(grads_and_vars)

    def _aggregate_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Pairs:
        """Reduce gradients for a LossScaleOptimizer, so that either all ranks find infinities or none does."""
        pairs = list(grads_and_vars)
        if self._agg_helper is None:
            return self._reduced_once(pairs)
        gradients, variables = _unzipped(pairs)
        return list(zip(_spoiled_together(self._horovod, gradients, variables), variables, strict=True))

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        if not pairs:
            return super().apply_gradients(pairs, *args, **kwargs)  # type: ignore[misc]
        if self._agg_helper is not None:
            return self._add_pass(self._agg_helper, pairs)
        if not _wants_aggregation(kwargs):
            self._horovod.reduced.difference_update([_reference(variable) for _, variable in pairs])
            return super().apply_gradients(pairs, *args, **kwargs)  # type: ignore[misc]
        return super().apply_gradients(self._reduced_once(pairs), *args, **_aggregated(self, kwargs))  # type: ignore[misc]

    def _reduced(self, pairs: Pairs) -> Pairs:
        """Return the gradients reduced over all ranks.

        Mark them, so that apply_gradients does not reduce them again.
        """
        reduction = self._horovod
        if reduction.left_to_others:
            return pairs
        gradients, variables = _unzipped(pairs)
        reduce = reduction if self._agg_helper is None else self._agg_helper.compute_gradients
        reduced = list(zip(reduce(gradients, variables), variables, strict=True))
        reduction.reduced.update(reduction.key(variable) for gradient, variable in reduced if gradient is not None)
        return reduced

    def _reduced_once(self, pairs: Pairs) -> Pairs:
        """Return gradients that are about to be applied, each reduced once.

        compute_gradients may have reduced some of them. A gradient that is None beside those was part of that
        reduction.
        """
        reduction = self._horovod
        done = {reduction.key(variable) for _, variable in pairs} & reduction.reduced
        fresh = [
            index
            for index, (gradient, variable) in enumerate(pairs)
            if reduction.key(variable) not in done and not (done and gradient is None)
        ]
        if fresh:
            for index, pair in zip(fresh, self._reduced([pairs[index] for index in fresh]), strict=True):
                pairs[index] = pair
        reduction.reduced.difference_update([_reference(variable) for _, variable in pairs])
        return pairs

    def _add_pass(self, helper: LocalGradientAggregationHelperEager, pairs: Pairs) -> Any:
        """Add the gradients of one backward pass to the sums; the last pass of a step applies the sums."""
        with tf.init_scope():
            self._build_on([variable for gradient, variable in pairs if gradient is not None])
        pairs = [pair for pair in self._reduced_once(pairs) if pair[0] is not None]

        def update() -> Any:
            return super(Keras2Optimizer, self).apply_gradients(pairs, **_aggregated(self, {}))  # type: ignore[misc]

        helper.apply_gradients(lambda: self._counting_updates(update, helper.backward_passes_per_step), self, pairs)
        return self.iterations

    def _counting_updates(self, update: Callable[[], Any], passes_per_update: int) -> Any:
        """Make an update while the counter holds the number of updates, then count the pass.

        Keras 2 has only one counter. Bias correction needs the number of updates, but learning rate schedules need the
        number of passes. So the counter holds the number of updates meanwhile, and `iterations` returns passes to
        schedules.
        """
        counter = self.iterations
        passes = tf.identity(counter)
        with tf.control_dependencies(ops_of([passes])):
            held = counter.assign(tf.maximum((passes + 1) // passes_per_update - 1, 0))
        self._passes_done = passes
        try:
            with tf.control_dependencies(ops_of([held])):
                done = update()
        finally:
            self._passes_done = None
        with tf.control_dependencies(ops_of([done])):
            return counter.assign(passes + 1)

    def _compute_current_learning_rate(self) -> None:
        with _schedule_counts_passes(self):
            super()._compute_current_learning_rate()  # type: ignore[misc]

    def _build_on(self, variables: Sequence[Any]) -> None:
        create = getattr(self, "_create_all_weights", None) or self.build  # type: ignore[attr-defined]
        create(variables)


class LegacyKeras2Optimizer(Keras2Optimizer):
    """First base of a distributed optimizer whose original is one of tf_keras.optimizers.legacy."""

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> Pairs:
        return self._compute_gradients(loss, var_list, tape=tape)

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> Pairs:
        found = super(Keras2Optimizer, self)._compute_gradients(loss, var_list, grad_loss, tape)  # type: ignore[misc]
        return self._reduced(found)

    def _decayed_lr(self, var_dtype: Any) -> Any:
        with _schedule_counts_passes(self):
            return super()._decayed_lr(var_dtype)  # type: ignore[misc]

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Return only the gradients, in a graph of version 1."""
        variables = tf.nest.flatten(params)
        found = super().get_gradients(loss, params)  # type: ignore[misc]
        return [gradient for gradient, _ in self._reduced(list(zip(found, variables, strict=True)))]


def base_for(original: Any, keras: Any) -> type:
    """Return the first base for distributed optimizers of a class that comes from this keras module."""
    for scaled in keras.mixed_precision.LossScaleOptimizer.__subclasses__():
        _reduce_below_the_scale(scaled)
    return LegacyKeras2Optimizer if is_legacy(original) else Keras2Optimizer


def _reduce_below_the_scale(loss_scale_class: Any) -> None:
    """Make a LossScaleOptimizer reduce the gradients of a distributed optimizer after it has removed the scale.

    With the scale the gradients could overflow 16 bits, and sums of several passes would mix different scales. Sums of
    several passes are reduced only when they are applied.
    """

    def reducing(compute: Callable[..., Pairs]) -> Callable[..., Pairs]:
        @functools.wraps(compute)
        def computed(self: Any, *args: Any, **kwargs: Any) -> Pairs:
            inner = self.inner_optimizer
            if not isinstance(getattr(inner, "_horovod", None), GradientReduction):
                return compute(self, *args, **kwargs)
            with _left_to_others(inner._horovod):
                pairs = compute(self, *args, **kwargs)
            return pairs if inner._agg_helper is not None else inner._reduced(pairs)

        computed.reduces = True  # type: ignore[attr-defined]
        return computed

    for name in ("compute_gradients", "_compute_gradients"):
        method = vars(loss_scale_class).get(name)
        if method is not None and not hasattr(method, "reduces"):
            setattr(loss_scale_class, name, reducing(method))


@contextlib.contextmanager
def _left_to_others(reduction: GradientReduction) -> Iterator[None]:
    reduction.left_to_others = True
    try:
        yield
    finally:
        reduction.left_to_others = False


@contextlib.contextmanager
def _schedule_counts_passes(optimizer: Keras2Optimizer) -> Iterator[None]:
    """Return the number of backward passes as `iterations` while a learning rate schedule reads it."""
    optimizer._shown_iterations = optimizer._passes_done
    try:
        yield
    finally:
        optimizer._shown_iterations = None


def _reference(variable: Any) -> Any:
    return variable.ref()


def _unzipped(pairs: Pairs) -> tuple[list[Any], list[Any]]:
    return [gradient for gradient, _ in pairs], [variable for _, variable in pairs]


def _wants_aggregation(kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("experimental_aggregate_gradients", True)) and not kwargs.get("skip_gradients_aggregation")


def _aggregated(optimizer: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that tell Keras that the gradients are already reduced."""
    legacy = is_legacy(optimizer)
    skip = {"experimental_aggregate_gradients": False} if legacy else {"skip_gradients_aggregation": True}
    dropped = ("experimental_aggregate_gradients", "skip_gradients_aggregation")
    return {name: value for name, value in kwargs.items() if name not in dropped} | skip


def _spoiled_together(reduction: GradientReduction, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Return this rank's gradients, made NaN if those of any rank are not finite, so that all ranks skip the pass."""
    if acts_alone(reduction.process_set):
        return list(gradients)
    tensors = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(one)) for one in tensors])
    everywhere = reduction.all_finite(tf.cast(finite, tf.float32), variables)
    spoil = tf.where(everywhere > 0, 0.0, float("nan"))
    return [None if one is None else tf.convert_to_tensor(one) + tf.cast(spoil, one.dtype) for one in gradients]
