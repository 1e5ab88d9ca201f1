# SPDX-License-Identifier: Apache-2.0
"""Tensors as torch.distributed hands them over → memory that the engine reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, NoReturn

import torch

from horovod.common.dtypes import ITEM_BYTES, UINT8
from horovod.torch.adapter import ID_BY_DTYPE
from horovod.torch.layout import is_dense
from horovod.torch.lazy_bits import resolve

Tensor = torch.Tensor

_REAL_PART = {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.complex32: torch.float16}


class Buffer(NamedTuple):
    """A run of elements: address, how many, the engine's dtype."""

    address: int
    elements: int
    dtype: int

    @property
    def bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]


def movable(tensor: Tensor) -> Buffer:
    """Memory to be moved as it is; types that the engine cannot calculate with travel as bytes."""
    _check(tensor)
    units, dtype = _travels_as(tensor.dtype)
    return Buffer(tensor.data_ptr(), tensor.numel() * units, dtype)


def in_order(tensor: Tensor) -> Tensor:
    """The tensor, or, if its memory has another order than its elements (channels_last), a copy that has the same.

    Other ranks may have the same tensor in yet another order. Nothing is copied of what has to be refused. The copy
    has no lazy bits either.
    """
    if tensor.layout != torch.strided or tensor.is_contiguous() or not is_dense(tensor):
        return resolve(tensor)
    return resolve(tensor.detach()).contiguous()


def units_of(dtype: torch.dtype) -> int:
    """As how many of the engine's elements one of the tensor's travels."""
    return _travels_as(dtype)[0]


@cache
def _travels_as(dtype: torch.dtype) -> tuple[int, int]:
    known = ID_BY_DTYPE.get(dtype)
    if known is not None:
        return 1, known
    real = _REAL_PART.get(dtype)
    return (2, ID_BY_DTYPE[real]) if real is not None else (torch.empty(0, dtype=dtype).element_size(), UINT8)


def reducible(tensor: Tensor) -> Buffer:
    """Memory to calculate with; ValueError for a type that the engine does not know."""
    if tensor.dtype not in _REAL_PART:
        ID_BY_DTYPE[tensor.dtype]
    return movable(tensor)


def _check(tensor: Tensor) -> None:
    if not (tensor.is_cpu or tensor.is_cuda) or tensor.layout != torch.strided or not tensor.is_contiguous():
        _refuse(tensor)


def _refuse(tensor: Tensor) -> NoReturn:
    if tensor.layout != torch.strided:
        raise ValueError(f"The horovod backend works on dense tensors, not on {tensor.layout}; pass tensor.to_dense()")
    if not (tensor.is_cpu or tensor.is_cuda):
        raise ValueError(f"The horovod backend works on tensors of the CPU and of CUDA, not of {tensor.device.type}")
    raise ValueError("Tensors must be contiguous: pass tensor.contiguous()")


def same_size(tensors: Sequence[Tensor]) -> bool:
    return all(tensor.numel() == tensors[0].numel() for tensor in tensors)


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """One flat tensor of all of them, in order."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def spread(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """The reverse of `joined`."""
    start = 0
    for tensor in tensors:
        tensor.detach().copy_(flat[start : start + tensor.numel()].view(tensor.shape), non_blocking=True)
        start += tensor.numel()
