# SPDX-License-Identifier: Apache-2.0
"""Keras on PyTorch, over horovod.torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import torch

import horovod.torch as hvd
from horovod._keras.state import KerasModelState
from horovod.common.context import default_context
from horovod.common.process_sets import ProcessSet
from horovod.torch import Compression as Compression
from horovod.torch import allgather as allgather
from horovod.torch import allreduce as allreduce
from horovod.torch import broadcast as broadcast
from horovod.torch import cuda_direct
from horovod.torch import reducescatter as reducescatter
from horovod.torch.elastic import run as run

State = KerasModelState


def tensor(value: Any) -> torch.Tensor:
    result: torch.Tensor = keras.ops.convert_to_tensor(value)
    return result.detach()


def is_sparse(gradient: Any) -> bool:
    return bool(gradient.is_sparse)


def dense(gradient: Any) -> Any:
    # Keras has no update rules for sparse tensors on PyTorch, so there is nothing to keep sparse.
    return gradient.to_dense() if gradient.is_sparse else gradient


def divided_by_size(gradient: Any, process_set: ProcessSet) -> Any:
    return gradient / (process_set.size() or 1)


def reduce_group(
    tensors: Sequence[Any],
    name: str,
    *,
    op: int,
    prescale: float,
    postscale: float,
    compression: Any,
    process_set: ProcessSet,
) -> list[Any]:
    """In place where nothing is compressed: the gradients of a step are not read again."""
    gradients = [dense(gradient).detach().contiguous() for gradient in tensors]
    options: dict[str, Any] = {
        "name": name,
        "op": op,
        "prescale_factor": prescale,
        "postscale_factor": postscale,
        "process_set": process_set,
    }
    if compression is Compression.none:
        return hvd.grouped_allreduce_(gradients, **options)
    return hvd.grouped_allreduce(gradients, compression=compression, **options)


def confirm(variables: Sequence[Any]) -> None:
    cuda_direct.confirm(default_context)


def broadcast_variables(variables: Sequence[Any], root_rank: int, name: str) -> None:
    with torch.no_grad():
        for number, variable in enumerate(variables):
            sent = hvd.broadcast(variable.value.detach().contiguous(), root_rank, f"{name}.{number}")
            variable.value.copy_(sent)
