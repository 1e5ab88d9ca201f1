# SPDX-License-Identifier: Apache-2.0
"""Adapter for Keras on PyTorch, over horovod.torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import torch

import horovod.torch as hvd
from horovod._keras.compressed_on_torch import METHODS, CompressedOnTorch
from horovod._keras.state import KerasModelState
from horovod.common.calls import ALLREDUCE, Call
from horovod.common.context import default_context
from horovod.common.dtypes import AS_IT_IS
from horovod.common.process_sets import ProcessSet
from horovod.common.supported_methods import method_in
from horovod.common.wire import wire_of
from horovod.torch import Compression as Compression
from horovod.torch import allgather as allgather
from horovod.torch import allreduce as allreduce
from horovod.torch import broadcast as broadcast
from horovod.torch import cuda_direct, direct
from horovod.torch import reducescatter as reducescatter
from horovod.torch.compression import is_convertible
from horovod.torch.elastic import run as run
from horovod.torch.graph import leaves_graph

State = KerasModelState


def tensor(value: Any) -> torch.Tensor:
    result: torch.Tensor = keras.ops.convert_to_tensor(value)
    return result.detach()


def is_sparse(gradient: Any) -> bool:
    return bool(gradient.is_sparse)


def dense(gradient: Any) -> Any:
    # On PyTorch, Keras has no update rules for sparse tensors, so all gradients become dense.
    return gradient.to_dense() if gradient.is_sparse else gradient


def divided_by_size(gradient: Any, process_set: ProcessSet) -> Any:
    return gradient / (process_set.size() or 1)


def is_tracing() -> bool:
    return False  # torch.compile runs what it cannot put into a graph as ordinary Python


@leaves_graph
def reduce_group(
    tensors: Sequence[Any],
    name: str,
    *,
    op: int,
    prescale: float,
    postscale: float,
    compression: Any,
    process_set: ProcessSet,
    contents: str = "",
) -> list[Any]:
    """Reduce the gradients while ranks compare the contents of the group.

    Without compression the results overwrite the inputs, because a step's gradients are not read again.
    """
    gradients = [dense(gradient).detach().contiguous() for gradient in tensors]
    gradients = gradients or [keras.ops.zeros(1)]  # one value, because an empty CUDA tensor has no address
    wire = wire_of(compression) if all(map(is_convertible, gradients)) else AS_IT_IS
    compressor = Compression.none if wire else compression
    pairs = [compressor.compress(gradient) for gradient in gradients]
    in_place = compression is Compression.none
    call = Call(
        ALLREDUCE, process_set, name, op, prescale, postscale,
        grouped=True, in_place=in_place, wire=wire, contents=contents,
    )  # fmt: skip
    reduced = direct.run(call, [sent for sent, _ in pairs])
    results = [compressor.decompress(result, context) for result, (_, context) in zip(reduced, pairs, strict=True)]
    return results[: len(tensors)]


def compressed_by(compression: Any, op: int) -> CompressedOnTorch | None:
    """Return the object that applies a compression method and has its state; None for a Compressor."""
    method = method_in(compression, METHODS, "hvd.DistributedOptimizer of Keras on PyTorch", op)
    return None if method is None else CompressedOnTorch(method, op)


@leaves_graph
def reduce_compressed(
    compressed: CompressedOnTorch,
    tensors: Sequence[Any],
    variables: Sequence[Any],
    name: str,
    *,
    process_set: ProcessSet,
    contents: str = "",
) -> list[Any]:
    """Reduce the gradients by a compression method."""
    return compressed([dense(gradient) for gradient in tensors], variables, name, process_set, contents)


def confirm(variables: Sequence[Any]) -> None:
    cuda_direct.confirm(default_context)


def broadcast_variables(variables: Sequence[Any], root_rank: int, name: str) -> None:
    with torch.no_grad():
        for number, variable in enumerate(variables):
            sent = hvd.broadcast(variable.value.detach().contiguous(), root_rank, f"{name}.{number}")
            variable.value.copy_(sent)
