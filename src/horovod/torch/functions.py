# SPDX-License-Identifier: Apache-2.0
"""Functions built on the operations, which send objects, parameters and optimizer state from one rank to all.

The module `optimizer_state` describes an optimizer's state and restores it from the description.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import torch

from horovod.common.objects import allgather_object as allgather_object
from horovod.common.objects import broadcast_object as broadcast_object
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import optimizer_state
from horovod.torch.lazy_bits import resolve
from horovod.torch.mpi_ops import allgather as allgather
from horovod.torch.mpi_ops import broadcast_ as broadcast_
from horovod.torch.mpi_ops import broadcast_async_, rank, synchronize
from horovod.torch.mpi_ops import size as size

Named = list[tuple[str, Any]]


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite tensors with those of one rank.

    Call it after the model is built or loaded, so that all ranks begin with the same parameters.

    Args:
        params: What model.state_dict() or model.named_parameters() returns, or a list of tensors. A value in a dict
            that is not a tensor is replaced in the dict.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        process_set: The ranks that take part. By default all ranks of the job.

    Raises:
        ValueError: `params` holds something else, or a lazy parameter that has no shape yet.
        HorovodMismatchError: The tensors of the ranks differ in shape or type.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    named = _named(params)
    tensors = [(name, value) for name, value in named if isinstance(value, torch.Tensor)]
    others = {name: value for name, value in named if not isinstance(value, torch.Tensor)}
    if others and not isinstance(params, MutableMapping):
        name, value = next(iter(others.items()))
        raise ValueError(f"broadcast_parameters: {name!r} is not a tensor but {type(value).__name__}; leave it out")
    _broadcast_tensors(tensors, root_rank, process_set)
    if others:
        assert isinstance(params, MutableMapping)
        params.update(broadcast_object(others, root_rank, "broadcast_parameters", process_set))


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite an optimizer's state and options with those of one rank.

    State that only the root has (it alone resumed from a checkpoint) is created on the other ranks. State that the root
    does not have is dropped. No parameter changes, and no optimizer makes a step.

    Args:
        optimizer: The optimizer, wrapped or not.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        model: Has no effect.
        process_set: The ranks that take part. By default all ranks of the job.

    Raises:
        ValueError: The optimizer is torch.optim.LBFGS, or its parameter groups differ from the root's.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
        >>> hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("broadcast_optimizer_state does not support torch.optim.LBFGS")
    is_root = rank() == root_rank
    described = optimizer_state.describe(optimizer) if is_root else None
    layout = broadcast_object(described, root_rank, "broadcast_optimizer_state", process_set)
    assert layout is not None
    if not is_root:
        optimizer_state.adopt(optimizer, layout)
    _broadcast_tensors(optimizer_state.tensors(optimizer, layout), root_rank, process_set)


def _named(params: Any) -> Named:
    if isinstance(params, Mapping):
        return sorted(params.items())
    if isinstance(params, (str, bytes, torch.Tensor)) or not isinstance(params, Iterable):
        raise ValueError(
            "broadcast_parameters takes a dict, a list of tensors or a list of (name, tensor), "
            f"not {type(params).__name__}"
        )
    return [_pair(index, item) for index, item in enumerate(params)]


def _pair(index: int, item: Any) -> tuple[str, Any]:
    if isinstance(item, tuple) and len(item) == 2:
        return str(item[0]), item[1]
    if not isinstance(item, torch.Tensor):
        raise ValueError(f"broadcast_parameters: entry {index} is neither a tensor nor a (name, tensor): {item!r}")
    return f"parameter.{index}", item


def _broadcast_tensors(named: Named, root_rank: int, process_set: ProcessSet) -> None:
    """Broadcast in place for any strides and lazy bits; tensors that are not contiguous are copied before and after."""
    for name, tensor in named:
        if torch.nn.parameter.is_lazy(tensor):
            raise ValueError(f"{name!r} has no shape yet: run one batch through the lazy module before broadcasting")
    under_way = []
    for name, tensor in named:
        dense = resolve(tensor.detach()).contiguous()
        bits = torch.view_as_real(dense) if dense.is_complex() else dense
        under_way.append((tensor.detach(), dense, broadcast_async_(bits, root_rank, name, process_set)))
    for tensor, dense, handle in under_way:
        synchronize(handle)
        if tensor.data_ptr() != dense.data_ptr():
            tensor.copy_(dense)
