# SPDX-License-Identifier: Apache-2.0
"""Adasum for optimizers of tf.compat.v1: each rank steps with its own gradients, then the ranks' steps are combined.

Adasum combines directions of training. That direction is what the optimizer makes of a gradient, so the change of the
variables in a step is reduced, not the gradient.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.common.process_sets import global_process_set
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.gradients import acts_alone
from horovod.tensorflow.mpi_ops import Adasum
from horovod.tensorflow.reductions import grouped_allreduce
from horovod.tensorflow.util import ref_of


class _DistributedAdasumOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Optimizer that combines the ranks' steps by Adasum on every `backward_passes_per_step`-th apply_gradients."""

    def __init__(
        self,
        optimizer: Any,
        name: str | None = None,
        use_locking: bool = False,
        device_dense: str = "",
        device_sparse: str = "",
        compression: type[Compressor] = Compression.none,
        backward_passes_per_step: int = 1,
    ) -> None:
        self._name = name or f"DistributedDelta{type(optimizer).__name__}"
        super().__init__(name=self._name, use_locking=use_locking)
        self._optimizer = optimizer
        self._device_dense = device_dense
        self._device_sparse = device_sparse
        self._compression = compression
        self._backward_passes_per_step = backward_passes_per_step
        self._passes: Any = None
        self._starts: dict[Any, Any] = {}

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """Step; at the end of a round, combine by Adasum what each rank's steps of the round changed."""
        pairs = args[0] if args else kwargs["grads_and_vars"]
        variables = [variable for gradient, variable in pairs if gradient is not None]
        if acts_alone(global_process_set):
            return self._optimizer.apply_gradients(*args, **kwargs)
        self._make_variables(variables)
        begins_round = tf.equal(self._passes % self._backward_passes_per_step, 0)
        begun = tf.cond(begins_round, lambda: self._begin(variables), lambda: _done([]))
        with tf.control_dependencies(_in_graph([begun])):
            stepped = self._optimizer.apply_gradients(*args, **kwargs)
        with tf.control_dependencies(_in_graph([stepped])):
            passes = self._passes.assign_add(1, read_value=True)
        with tf.control_dependencies(_in_graph([passes])):
            due = tf.equal(passes % self._backward_passes_per_step, 0)
            return tf.cond(due, lambda: self._combine(variables), lambda: _done([]))

    def _begin(self, variables: list[Any]) -> Any:
        """Save the variables' values at the beginning of the round."""
        return _done([self._starts[ref_of(variable)].assign(_value(variable)) for variable in variables])

    def _combine(self, variables: list[Any]) -> Any:
        begins = [self._starts[ref_of(variable)].read_value() for variable in variables]
        deltas = [_value(variable) - begin for variable, begin in zip(variables, begins, strict=True)]
        combined = grouped_allreduce(
            deltas,
            device_dense=self._device_dense,
            device_sparse=self._device_sparse,
            compression=self._compression,
            op=Adasum,
        )
        ends = [begin + delta for begin, delta in zip(begins, combined, strict=True)]
        return _done([variable.assign(end) for variable, end in zip(variables, ends, strict=True)])

    def _make_variables(self, variables: list[Any]) -> None:
        with tf.init_scope():
            if self._passes is None:
                self._passes = tf.Variable(tf.zeros([], tf.int64), trainable=False, name=f"{self._name}_passes")
            for variable in variables:
                if ref_of(variable) not in self._starts:
                    zeros = tf.zeros(variable.shape, variable.dtype.base_dtype)
                    self._starts[ref_of(variable)] = tf.Variable(zeros, trainable=False, name="delta_start")

    def get_slot(self, var: Any, name: str) -> Any:
        """Return a slot of the optimizer, or `delta_start`: the variable's value at the beginning of the round."""
        return self._starts.get(ref_of(var)) if name == "delta_start" else self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        return [*self._optimizer.get_slot_names(), "delta_start"]

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        own = [] if self._passes is None else [self._passes, *self._starts.values()]
        return [*self._optimizer.variables(*args, **kwargs), *own]


def _value(variable: Any) -> Any:
    return variable.read_value() if hasattr(variable, "read_value") else tf.identity(variable)


def _in_graph(values: list[Any]) -> list[Any]:
    return [] if tf.executing_eagerly() else values


def _done(operations: list[Any]) -> Any:
    """Return a tensor that is available once all operations are done; branches of tf.cond must return one."""
    with tf.control_dependencies(_in_graph(operations)):
        return tf.constant(True)
