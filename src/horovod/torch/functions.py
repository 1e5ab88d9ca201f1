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
    """Overwrite tensors with those of one rank: a dict, a list of tensors, or a list of (name, tensor).

    What is not a tensor in a dict (a count, a module's extra state) is replaced in the dict.
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
    """Make an optimizer's state and options those of one rank. No parameter changes.

    State that only the root has (it alone resumed from a checkpoint) is created here. State that the root does not
    have is dropped: if the root's optimizer has not stepped yet, every rank begins without state. No optimizer makes a
    step. `model` has no effect any more; Horovod's scripts pass it.
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
