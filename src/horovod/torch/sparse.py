# SPDX-License-Identifier: Apache-2.0
"""Allreduce of sparse gradients, whose indices and values are gathered instead of reduced."""

from __future__ import annotations

from collections.abc import Callable

import torch

from horovod.common.calls import ALLGATHER, Call
from horovod.common.process_sets import ProcessSet
from horovod.common.rules import Average, Sum
from horovod.torch.adapter import Tensor
from horovod.torch.direct import begin, synchronize


def sparse_allreduce(
    tensor: Tensor, name: str | None, op: int, process_set: ProcessSet, compares_shapes: bool = True
) -> Callable[[], Tensor]:
    """Start the allgathers of a sparse tensor. Return a function that waits and returns the sparse sum or average.

    With `compares_shapes`, all ranks raise HorovodMismatchError if the dense shapes differ; callers that have already
    compared them pass False.
    """
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.sparse_coo:
        kind = tensor.layout if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(f"sparse_allreduce_async needs a sparse tensor with torch.sparse_coo, not {kind}")
    if op not in (Average, Sum):
        raise ValueError("sparse_allreduce_async can only average and sum; densify the tensor for other operations")
    shape, is_average = tensor.shape, op == Average
    # Indices are transposed because allgather concatenates along the first dimension.
    # The private accessors also accept tensors that are not coalesced, as gradients often are.
    parts = {"indices": tensor._indices().t().contiguous(), "values": tensor._values().detach().contiguous()}
    if compares_shapes:
        # This part only compares shapes: allgather requires equal dimensions after the first one, which is 0 here.
        parts["shape"] = torch.empty((0, *shape), dtype=torch.uint8)
    started = [
        begin(Call(ALLGATHER, process_set, f"{name}.{what}" if name else None), [part]) for what, part in parts.items()
    ]

    def finish() -> Tensor:
        every_index, every_value, *_ = [synchronize(handle) for handle in started]
        total = torch.sparse_coo_tensor(every_index.t(), every_value, shape, check_invariants=False)
        return _divided(total, process_set.size() or 1) if is_average else total

    return finish


def _divided(total: Tensor, size: int) -> Tensor:
    """Return a sparse sum divided by the number of ranks. Integers remain integers, rounded toward zero."""
    dtype = total.dtype
    if dtype.is_floating_point:
        indices, values = total._indices(), total._values() / size
    else:
        whole = total.to(torch.int64).coalesce()
        indices, values = whole.indices(), torch.div(whole.values(), size, rounding_mode="trunc").to(dtype)
    return torch.sparse_coo_tensor(indices, values, total.shape, check_invariants=False)
