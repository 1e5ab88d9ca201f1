# SPDX-License-Identifier: Apache-2.0
"""Local accumulation of gradients: several backward passes for each reduction, in eager mode and in graphs.

Sums are kept in variables. Every n-th pass reduces the sums and resets them; the other passes do not update the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet
from horovod.tensorflow.gradients import LocalVariables, dense
from horovod.tensorflow.util import ref_of

AllreduceFunction = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


class GradientAccumulation:
    """Sums of gradients over `backward_passes_per_step` calls; `allreduce_func(gradients, variables)` reduces them."""

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: AllreduceFunction,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet,
        scale_local_gradients: bool,
        name: str = "",
    ) -> None:
        if backward_passes_per_step <= 0:
            raise ValueError(f"backward_passes_per_step must be at least 1, not {backward_passes_per_step}")
        self.backward_passes_per_step = backward_passes_per_step
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self.process_set = process_set
        self._local = LocalVariables(allreduce_func, process_set, scale_local_gradients)
        self._name = name or "aggregation"
        self._sums: dict[Any, Any] = {}  # sum of gradients of each variable
        self._summed: set[Any] = set()  # references of the variables that had a gradient since the last reduction
        self.counter: Any = None  # variable with the number of passes in the sums; None if every pass reduces
        if backward_passes_per_step > 1:
            with tf.init_scope():
                self.counter = self._variable(tf.zeros([], tf.int64), "counter")

    @property
    def locally_aggregated_grads(self) -> list[Any]:
        """Return the sums of gradients so far.

        Returns:
            The sums, in the order in which their variables first had a gradient.
        """
        return list(self._sums.values())

    def register_local_var(self, var: Any) -> None:
        """Exclude the gradient of a variable from the reduction.

        Args:
            var: The variable.
        """
        self._local.register(var)

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Return the reduced sums on every n-th call.

        On other calls return the gradients unchanged; apply_gradients does not apply them.
        """
        grads = [self._checked(gradient) for gradient in grads]
        if self.backward_passes_per_step == 1:
            return self._local.reduce(grads, vars)
        added = [index for index, gradient in enumerate(grads) if gradient is not None]
        sums = [self._sum_for(vars[index], grads[index]).assign_add(grads[index]) for index in added]
        self._summed.update(ref_of(vars[index]) for index in added)
        present = [index for index, variable in enumerate(vars) if ref_of(variable) in self._summed]
        with tf.control_dependencies(ops_of(sums)):
            passes = self.counter.assign_add(1, read_value=True)

        def reduce() -> list[Any]:
            return self._reduced_sums(present, vars)

        def keep() -> list[Any]:
            return [_identity_or_zeros(grads[index], vars[index]) for index in present]

        with tf.control_dependencies(ops_of([passes])):
            chosen = tf.cond(tf.equal(passes, self.backward_passes_per_step), reduce, keep)
        result: list[Any] = [None] * len(grads)
        for index, gradient in zip(present, tf.nest.flatten(chosen), strict=True):
            result[index] = gradient
        return result

    def apply_gradients(self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the closure if the last compute_gradients reduced; otherwise only increment the optimizer's step."""
        if self.backward_passes_per_step == 1:
            return apply_grads_closure()
        pairs = args[0] if args else kwargs.get("grads_and_vars", ())
        gradients = [gradient for gradient, _ in pairs if gradient is not None]

        def apply() -> Any:
            done = apply_grads_closure()
            with tf.control_dependencies(ops_of([done])):
                return tf.no_op() if not tf.executing_eagerly() else tf.constant(True)

        def count() -> Any:
            with tf.control_dependencies(ops_of([self._count_step(optimizer, *args, **kwargs)])):
                return tf.no_op() if not tf.executing_eagerly() else tf.constant(True)

        with tf.control_dependencies(ops_of(gradients)):  # graphs of version 1 have no other execution order
            begins_anew = tf.equal(self.counter.read_value(), 0)
        return tf.cond(begins_anew, apply, count)

    def _reduced_sums(self, present: Sequence[int], variables: Sequence[Any]) -> list[Any]:
        """Return the reduced sums of the variables that have gradients; ranks compare which variables these are."""
        accumulators = [self._sums[ref_of(variables[index])] for index in present]
        sums = [tf.identity(accumulator.read_value()) for accumulator in accumulators]
        if self.average_aggregated_gradients:
            sums = [total / tf.cast(self.backward_passes_per_step, total.dtype) for total in sums]
        gradients: list[Any] = [None] * len(variables)
        for index, total in zip(present, sums, strict=True):
            gradients[index] = total
        everything = self._local.reduce(gradients, variables)
        reduced = [everything[index] for index in present]
        with tf.control_dependencies(ops_of(reduced)):
            resets = [accumulator.assign(tf.zeros_like(accumulator)) for accumulator in accumulators]
            resets.append(self.counter.assign(0))
        if tf.executing_eagerly():  # tracing a graph also runs this code for passes that do not reduce
            self._summed.clear()
        with tf.control_dependencies(ops_of(resets)):
            return [tf.identity(gradient) for gradient in reduced]

    def _count_step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        step = getattr(optimizer, "iterations", None)
        if step is None:
            step = kwargs.get("global_step", args[1] if len(args) > 1 else None)
        return None if step is None else step.assign_add(1)

    def _checked(self, gradient: Any) -> Any:
        sparse = isinstance(gradient, tf.IndexedSlices)
        if sparse and not self.sparse_as_dense and self.backward_passes_per_step > 1:
            raise ValueError(
                "IndexedSlices cannot be accumulated over several backward passes: pass sparse_as_dense=True"
            )
        return dense(gradient) if self.sparse_as_dense else gradient

    def _sum_for(self, variable: Any, gradient: Any) -> Any:
        ref = ref_of(variable)
        if ref not in self._sums:
            with tf.init_scope():
                zeros = tf.zeros(variable.shape, gradient.dtype)
                self._sums[ref] = self._variable(zeros, f"sum_{len(self._sums)}")
        return self._sums[ref]

    def _variable(self, initial: Any, name: str) -> Any:
        return tf.Variable(initial, trainable=False, name=f"{self._name}_{name}")


def _identity_or_zeros(gradient: Any, variable: Any) -> Any:
    return tf.zeros_like(variable) if gradient is None else tf.identity(gradient)


def ops_of(values: Sequence[Any]) -> list[Any]:
    """Return the values that a graph has to wait for; in eager mode none, because they are already computed."""
    return [] if tf.executing_eagerly() else [value for value in values if value is not None]
