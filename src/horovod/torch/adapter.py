# SPDX-License-Identifier: Apache-2.0
"""Address, shape and dtype of torch tensors for the engine, without code that is compiled against torch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from horovod._engine import Output, PlainTensors, TensorMaker, TensorReader
from horovod.common.dtypes import ID_BY_NAME
from horovod.common.ops import Description

Tensor = torch.Tensor


class _IdByDType(dict[torch.dtype, int]):
    """Dictionary of dtype ids that raises an error listing the supported dtypes for any other one.

    Because it is a dict, lookups of supported dtypes are fast.
    """

    def __missing__(self, dtype: torch.dtype) -> int:
        raise ValueError(f"{dtype} is not supported; the supported ones are {', '.join(str(known) for known in self)}")


# Older versions of torch lack some of these types.
ID_BY_DTYPE = _IdByDType({getattr(torch, name): number for name, number in ID_BY_NAME.items() if hasattr(torch, name)})


# Functions of DLPack for other compiled modules; older versions of torch do not have them.
_EXCHANGE_TABLE: object = getattr(Tensor, "__dlpack_c_exchange_api__", None)


@functools.cache
def tensor_reader() -> TensorReader:
    """Return the reader of plain tensors for native calls."""
    return TensorReader(Tensor, ID_BY_DTYPE, torch.strided, _EXCHANGE_TABLE)


def tensor_maker(table: object = _EXCHANGE_TABLE) -> TensorMaker:
    """Return a maker of tensors over the engine's memory."""
    return TensorMaker(table, torch._C._from_dlpack)  # not a Python function, because a signal could interrupt one


def plain_tensors(table: object = _EXCHANGE_TABLE) -> PlainTensors:
    """Return the reader and maker for native calls on single tensors."""
    reader = TensorReader(Tensor, ID_BY_DTYPE, torch.strided, table)
    return PlainTensors(reader, tensor_maker(table), ID_BY_DTYPE, torch.is_grad_enabled)


class TorchAdapter:
    """Adapter of torch tensors; see horovod.common.ops.Adapter."""

    @staticmethod
    def source(tensor: Tensor) -> Description:
        if not tensor.is_cpu or tensor.layout is not torch.strided or not tensor.is_contiguous():
            refuse(tensor)
        return tensor.data_ptr(), tuple(tensor.shape), ID_BY_DTYPE[tensor.dtype]

    target = source

    @staticmethod
    def empty(like: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, int]:
        tensor = like.new_empty(shape)  # takes half the time of torch.empty
        return tensor, tensor.data_ptr()

    @staticmethod
    def adopt(memory: Output, like: Tensor, rows: int) -> Tensor:
        shape = (rows, *like.shape[1:])
        if not memory.nbytes:
            return torch.empty(shape, dtype=like.dtype)
        return torch.frombuffer(memory, dtype=like.dtype).reshape(shape)

    @staticmethod
    def split_sizes(splits: Any) -> list[int]:
        if isinstance(splits, Tensor) and splits.dtype != torch.int32:
            raise ValueError(
                f"splits must be a torch.int32 tensor or a list of integers, not a tensor of {splits.dtype}"
            )
        try:
            sizes = torch.as_tensor(splits)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"splits must be a list or one-dimensional tensor of integers, not {splits!r}") from None
        if sizes.dim() != 1 or (sizes.numel() and (sizes.is_floating_point() or sizes.dtype == torch.bool)):
            raise ValueError(f"splits must be a list or one-dimensional tensor of integers, not {splits!r}")
        return [int(size) for size in sizes.tolist()]

    @staticmethod
    def splits_tensor(received: Sequence[int], splits: Any) -> Tensor:
        fits = max(received, default=0) < 1 << 31
        device = splits.device if isinstance(splits, Tensor) else None
        return torch.tensor(received, dtype=torch.int32 if fits else torch.int64, device=device)


def refuse(tensor: Any) -> NoReturn:
    """Raise an error that says why the engine cannot work on a tensor's memory."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"Expected a torch.Tensor, not {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise ValueError(f"Expected a dense tensor, not one with {tensor.layout}; use hvd.sparse_allreduce_async")
    if not tensor.is_cpu and not tensor.is_cuda:
        raise ValueError(f"Tensors on device {tensor.device} are not supported, only cpu and cuda; pass tensor.cpu()")
    raise ValueError("The tensor is not contiguous; pass tensor.contiguous()")
