# SPDX-License-Identifier: Apache-2.0
"""Accumulation of gradients in graphs, under Horovod's name; see accumulation.py for the implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.accumulation import AllreduceFunction, GradientAccumulation
from horovod.tensorflow.mpi_ops import size_op as size_op


def get_not_none_from_list(tensor_list: Sequence[Any]) -> list[Any]:
    return [tensor for tensor in tensor_list if tensor is not None]


def apply_op_to_not_none_tensors(tensor_op: Callable[..., Any], tensors: Sequence[Any], *args: Any) -> list[Any]:
    """Return the results of the operation on each tensor; None stays None."""
    return [None if tensor is None else tensor_op(tensor, *args) for tensor in tensors]


class LocalGradientAggregationHelper(GradientAccumulation):
    """Accumulation of gradients over several backward passes, for optimizers in graphs.

    hvd.DistributedOptimizer(backward_passes_per_step=...) uses it; programs rarely need it.

    Args:
        backward_passes_per_step: Number of backward passes whose gradients are accumulated before they are reduced.
        allreduce_func: Function of the gradients and the variables, which returns the reduced gradients.
        sparse_as_dense: Convert sparse gradients to dense ones before the reduction.
        average_aggregated_gradients: Divide accumulated gradients by backward_passes_per_step.
        rank: Has no effect.
        optimizer_type: Has no effect.
        process_set: The ranks that take part. By default all ranks of the job.
        scale_local_gradients: Divide the gradients of variables that stay on this rank by the number of ranks.
        name: Part of the names of its variables.

    Raises:
        ValueError: backward_passes_per_step is below 1.

    Example:
        >>> reduce = lambda gradients, variables: gradients
        >>> helper = hvd.LocalGradientAggregationHelper(2, reduce, False, False, hvd.rank(), 'legacy_optimizer')
    """

    OPTIMIZER_TYPE_KERAS = "keras_optimizer"
    OPTIMIZER_TYPE_LEGACY = "legacy_optimizer"
    _OPTIMIZER_TYPE_KERAS = OPTIMIZER_TYPE_KERAS
    _OPTIMIZER_TYPE_LEGACY = OPTIMIZER_TYPE_LEGACY

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: AllreduceFunction,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: str,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            process_set,
            scale_local_gradients,
            name,
        )
        self.rank = rank
        self.optimizer_type = optimizer_type
