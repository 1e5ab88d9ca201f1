# SPDX-License-Identifier: Apache-2.0
"""Methods that a DistributedOptimizer adds to an optimizer of Keras 3, on every backend.

Keras applies all gradients through `apply`; on JAX it calls `apply` inside a scope that records assignments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras

from horovod._keras.copies import plain_copy
from horovod._keras.reduction import GradientReduction, follow_memories


class Keras3Optimizer:
    """First base of a distributed optimizer's class; the second base is the original optimizer's class."""

    _horovod: GradientReduction
    _passes: Passes | None = None
    _runs_update_rule = False

    def _reduce_by(self, reduction: GradientReduction) -> None:
        """Set the reduction. Called once, when the optimizer is created."""
        self._horovod = reduction
        reduction.key = self._var_key  # type: ignore[attr-defined]
        follow_memories(self, reduction)

    def register_local_var(self, var: Any) -> None:
        """Exclude the gradient of a variable from the reduction."""
        self._horovod.register_local_var(var)

    def build(self, variables: Sequence[Any]) -> None:
        super().build(variables)  # type: ignore[misc]
        if self._horovod.backward_passes_per_step > 1 and self._passes is None:
            # Hide the sums in an object that Keras does not track, because saved models must not contain them.
            self._passes = Passes(variables)

    @property
    def iterations(self) -> Any:
        """Return the number of backward passes; while the update rule runs, the number of updates it has made.

        Bias correction and moving averages count updates. Learning rate schedules read the stored counter of passes.
        """
        if not self._runs_update_rule:
            return super().iterations  # type: ignore[misc]
        # Keras may accumulate gradients, too. Then it makes an update in passes that are a multiple of both periods.
        period = math.lcm(self._horovod.backward_passes_per_step, self.gradient_accumulation_steps or 1)  # type: ignore[attr-defined]
        return keras.ops.maximum(keras.ops.floor_divide(self._iterations + 1, period) - 1, 0)  # type: ignore[attr-defined]

    @property
    def variables(self) -> list[Any]:
        own: list[Any] = super().variables  # type: ignore[misc]
        # The compiled step of JAX gets all state as arguments, including the sums of gradients.
        return own + self._passes.variables if self._passes and keras.backend.backend() == "jax" else own

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        if not len(grads):
            return
        if not self.built:  # type: ignore[attr-defined]
            if trainable_variables is None:
                super().apply(grads)  # type: ignore[misc]
                return  # not reached, because Keras raises an error
            with keras.name_scope(self.name):  # type: ignore[attr-defined]
                self.build(list(trainable_variables))
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)  # type: ignore[attr-defined]
        if self._passes is None:
            self._apply_reduced(grads, variables)
        elif keras.backend.backend() == "jax":
            self._passes.add_stateless(self, grads, variables)
        else:
            self._passes.add(self, grads, variables)

    def _apply_reduced(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        reduced = self._horovod(grads, variables)
        if self._passes is not None:  # drop gradients that are None, about which Keras would warn
            present = [index for index, gradient in enumerate(reduced) if gradient is not None]
            reduced, variables = [reduced[index] for index in present], [variables[index] for index in present]
        self._runs_update_rule = self._passes is not None
        try:
            super().apply(reduced, variables)  # type: ignore[misc]
        finally:
            self._runs_update_rule = False

    def __reduce_ex__(self, protocol: Any) -> Any:
        return plain_copy(self, super().__reduce_ex__(protocol))

    def save_own_variables(self, store: Any) -> None:
        with _hidden_passes(self):
            super().save_own_variables(store)  # type: ignore[misc]

    def load_own_variables(self, store: Any) -> None:
        with _hidden_passes(self):
            super().load_own_variables(store)  # type: ignore[misc]


class Passes:
    """Sums of the gradients of several backward passes, and the number of passes."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.count = keras.Variable(0, dtype="int32", trainable=False, name="passes")
        self._variables = list(variables)
        self._sums = {id(variable): _zeros_like(variable) for variable in variables}
        self._summed: set[int] = set()  # ids of the variables that had a gradient since the last update

    @property
    def variables(self) -> list[Any]:
        return [self.count, *self._sums.values()]

    def add(self, optimizer: Keras3Optimizer, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        """Add the gradients of one backward pass to the sums; the last pass of a step applies the sums."""
        reduction = optimizer._horovod
        for total, gradient in self._added(reduction, grads, variables):
            total.assign_add(keras.ops.cast(gradient, total.dtype))

        def step() -> None:
            self._apply(optimizer, {key: total.value for key, total in self._sums.items() if key in self._summed})
            if not reduction.door.is_tracing():
                self._summed.clear()

        def wait() -> None:
            self.count.assign_add(1)
            optimizer._iterations.assign_add(1)  # type: ignore[attr-defined]

        keras.ops.cond(self.count + 1 >= reduction.backward_passes_per_step, step, wait)

    def add_stateless(self, optimizer: Keras3Optimizer, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        """Add the gradients of a pass on JAX, where both branches of a condition must return all changed state."""
        reduction = optimizer._horovod
        added = {id(total): gradient for total, gradient in self._added(reduction, grads, variables)}
        state = [*self._variables, *optimizer.variables]
        sums = {key: total.value + added.get(id(total), 0) for key, total in self._sums.items() if key in self._summed}

        def after(change: Any) -> list[Any]:
            with keras.StatelessScope(state_mapping=[(one, one.value) for one in state]) as scope:
                change()
            return [scope.get_current_value(one) for one in state]

        def wait() -> None:
            self.count.assign(self.count.value + 1)
            optimizer._iterations.assign(optimizer._iterations.value + 1)  # type: ignore[attr-defined]
            for key, total in sums.items():
                self._sums[key].assign(total)

        is_last = self.count.value + 1 >= reduction.backward_passes_per_step
        changed = keras.ops.cond(is_last, lambda: after(lambda: self._apply(optimizer, sums)), lambda: after(wait))
        for one, value in zip(state, changed, strict=True):
            one.assign(value)

    def _added(
        self, reduction: GradientReduction, grads: Sequence[Any], variables: Sequence[Any]
    ) -> list[tuple[Any, Any]]:
        """Return (sum, gradient) for each gradient of a pass, and record the variables that had one."""
        present = [
            (id(variable), gradient)
            for gradient, variable in zip(grads, variables, strict=True)
            if gradient is not None
        ]
        self._summed.update(key for key, _ in present)
        return [(self._sums[key], _summable(reduction, gradient)) for key, gradient in present]

    def _apply(self, optimizer: Keras3Optimizer, sums: dict[int, Any]) -> None:
        """Apply sums, given by the ids of their variables, and reset them."""
        divisor = optimizer._horovod.divisor
        gradients = [sums[id(one)] / divisor if id(one) in sums else None for one in self._variables]
        optimizer._apply_reduced(gradients, self._variables)
        self.count.assign(0)
        for key in sums:
            self._sums[key].assign(keras.ops.zeros_like(self._sums[key].value))


def _summable(reduction: GradientReduction, gradient: Any) -> Any:
    if reduction.door.is_sparse(gradient) and not reduction.sparse_as_dense:
        raise ValueError("Sparse gradients cannot be summed over several backward passes: pass sparse_as_dense=True")
    return reduction.door.dense(gradient)


def _zeros_like(variable: Any) -> Any:
    return keras.Variable(
        "zeros", shape=variable.shape, dtype=variable.dtype, trainable=False, name=f"{variable.name}_sum"
    )


class _hidden_passes:  # noqa: N801 - used like a function
    """Context in which an optimizer's `variables` do not include the sums of gradients."""

    def __init__(self, optimizer: Keras3Optimizer) -> None:
        self._optimizer = optimizer
        self._passes = optimizer._passes

    def __enter__(self) -> None:
        self._optimizer._passes = None

    def __exit__(self, *exception: object) -> None:
        self._optimizer._passes = self._passes


def agree_on_finite_gradients() -> None:
    """Make a LossScaleOptimizer around a distributed optimizer skip a step on all ranks or on none.

    Keras checks only this rank's gradients. A rank that found its gradients finite would wait for those that skip the
    step.
    """
    loss_scale_class = keras.optimizers.LossScaleOptimizer
    check_finite = loss_scale_class.check_finite
    if hasattr(check_finite, "agreed"):
        return

    def agreed_check(self: Any, grads: Sequence[Any]) -> Any:
        finite = check_finite(self, grads)
        reduction = getattr(self.inner_optimizer, "_horovod", None)
        if reduction is None:
            return finite
        variables = self.inner_optimizer._trainable_variables  # the inner optimizer is built by now
        return keras.ops.cast(reduction.all_finite(keras.ops.cast(finite, "float32"), variables), "bool")

    agreed_check.agreed = True  # type: ignore[attr-defined]
    loss_scale_class.check_finite = agreed_check
