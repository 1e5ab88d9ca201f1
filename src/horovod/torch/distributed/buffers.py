# SPDX-License-Identifier: Apache-2.0
"""Conversion of torch.distributed's tensors to memory that the engine reads and writes."""

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
    """Contiguous elements in memory: address, number, and the engine's dtype."""

    address: int
    elements: int
    dtype: int

    @property
    def bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]


def movable(tensor: Tensor) -> Buffer:
    """Return a tensor's memory for a collective that only moves it; dtypes unknown to the engine travel as bytes."""
    _check(tensor)
    units, dtype = _travels_as(tensor.dtype)
    return Buffer(tensor.data_ptr(), tensor.numel() * units, dtype)


def in_order(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy with its elements in order if its memory has another order (channels_last).

    Other ranks may have the tensor in yet another memory order. A tensor that will be refused is not copied. The result
    has no lazy bits either.
    """
    if tensor.layout != torch.strided or tensor.is_contiguous() or not is_dense(tensor):
        return resolve(tensor)
    return resolve(tensor.detach()).contiguous()


def units_of(dtype: torch.dtype) -> int:
    """Return as how many of the engine's elements one element of this dtype travels."""
    return _travels_as(dtype)[0]


@cache
def _travels_as(dtype: torch.dtype) -> tuple[int, int]:
    known = ID_BY_DTYPE.get(dtype)
    if known is not None:
        return 1, known
    real = _REAL_PART.get(dtype)
    return (2, ID_BY_DTYPE[real]) if real is not None else (torch.empty(0, dtype=dtype).element_size(), UINT8)


def reducible(tensor: Tensor) -> Buffer:
    """Return a tensor's memory for a reduction; raise ValueError for a dtype that the engine cannot reduce."""
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
    """Return the values of all tensors, in order, as one flat tensor."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def spread(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy consecutive parts of a flat tensor to the tensors; the reverse of `joined`."""
    start = 0
    for tensor in tensors:
        tensor.detach().copy_(flat[start : start + tensor.numel()].view(tensor.shape), non_blocking=True)
        start += tensor.numel()
