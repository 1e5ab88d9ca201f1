# SPDX-License-Identifier: Apache-2.0
"""Functions built on the operations: objects and parameters from one rank to all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from horovod.common.objects import allgather_object as allgather_object
from horovod.common.objects import broadcast_object as broadcast_object
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.adapter import Tensor
from horovod.torch.mpi_ops import broadcast_async_, synchronize


def broadcast_parameters(
    params: Mapping[str, Tensor] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite tensors with those of one rank: a dict, a list of tensors, or a list of (name, tensor)."""
    handles = [broadcast_async_(tensor, root_rank, name, process_set) for name, tensor in _named(params)]
    for handle in handles:
        synchronize(handle)


def _named(params: Any) -> list[tuple[str, Tensor]]:
    if isinstance(params, Mapping):
        return sorted(params.items())
    if not isinstance(params, (list, tuple)):
        raise ValueError(f"broadcast_parameters takes a dict or a list of tensors, not {type(params).__name__}")
    return [item if isinstance(item, tuple) else (f"parameter.{index}", item) for index, item in enumerate(params)]
