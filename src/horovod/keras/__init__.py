# SPDX-License-Identifier: Apache-2.0
"""The Keras door: `import horovod.keras as hvd`, for Keras 3 on TensorFlow, PyTorch or JAX, and for Keras 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from horovod import _keras as _impl
from horovod._keras.doors import door_of
from horovod._keras.reduction import checked_groups
from horovod.common import door
from horovod.common.door import *  # noqa: F403 - what it names in __all__
from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError
from horovod.common.objects import allgather_object, broadcast_object
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.common.rules import Adasum, Average, Sum

Compression = door_of(keras).Compression


def DistributedOptimizer(  # noqa: N802 - the name in all doors
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Any = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer like the one given that averages gradients over all ranks before it applies them.

    All gradients of a step are reduced as one unit, or in `groups`: how many, or lists of variables. With
    backward_passes_per_step=k, gradients of k batches are summed (or averaged) before they are reduced and applied.
    """
    return _impl.create_distributed_optimizer(
        keras,
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        checked_groups(groups, num_groups),
        process_set,
        scale_local_gradients,
    )


def PartialDistributedOptimizer(  # noqa: N802 - the contract's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """A DistributedOptimizer that leaves the weights of `local_layers` to each rank alone."""
    layers = local_layers if isinstance(local_layers, (list, tuple, set)) else [local_layers] if local_layers else []
    return _impl.create_distributed_optimizer(
        keras,
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        checked_groups(groups),
        process_set,
        scale_local_gradients,
        list(layers),
    )


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce a number, an array or a tensor over all ranks (op: Average by default), as a tensor of the backend."""
    if average is True:  # the default, which an op overrules
        average, op = None, Average if op is None else op
    return _impl.allreduce(keras, value, name, average, prescale_factor, postscale_factor, op, compression)


def allgather(value: Any, name: str | None = None) -> Any:
    """The values of all ranks, one after the other along the first dimension, in which they may differ."""
    return _impl.allgather(keras, value, name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of the root."""
    return _impl.broadcast(keras, value, root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Reduce over all ranks; each gets its share of the rows."""
    return _impl.reducescatter(keras, value, name, op)


def broadcast_global_variables(root_rank: int) -> Any:
    """The variables of a TensorFlow 1 graph; elsewhere use BroadcastGlobalVariablesCallback."""
    return _impl.broadcast_global_variables(keras, root_rank)


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """keras.models.load_model with a DistributedOptimizer around the optimizer of the model, its state included."""

    def wrap(optimizer: Any) -> Any:
        return DistributedOptimizer(optimizer, compression=compression)

    return _impl.load_model(keras, wrap, filepath, custom_optimizers, custom_objects, legacy_opts)


from horovod.keras import callbacks, elastic  # noqa: E402 - they use what is above

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HorovodMismatchError",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "callbacks",
    "elastic",
    "global_process_set",
    "load_model",
    "reducescatter",
    "remove_process_set",
]
__all__ += door.__all__
