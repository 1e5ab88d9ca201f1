# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients: their indices and values are gathered, not reduced."""

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
    """Start the allgathers of a sparse tensor; call what is returned to wait and get the sparse sum or average.

    Args:
        compares_shapes: Raise HorovodMismatchError on all ranks if the dense shapes differ. False for callers that
            have compared them already.
    """
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.sparse_coo:
        kind = tensor.layout if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(f"sparse_allreduce_async needs a sparse tensor with torch.sparse_coo, not {kind}")
    if op not in (Average, Sum):
        raise ValueError("sparse_allreduce_async can only average and sum; densify the tensor for other operations")
    shape, is_average = tensor.shape, op == Average
    # Along the first dimension, in which an allgather concatenates. The private accessors also take tensors that are
    # not coalesced, which gradients often are not.
    parts = {"indices": tensor._indices().t().contiguous(), "values": tensor._values().detach().contiguous()}
    if compares_shapes:
        # An allgather requires equal dimensions behind the first one. No data is sent.
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
    """Return a sparse sum divided by the number of ranks. Integers stay integers: they were added before."""
    dtype = total.dtype
    if dtype.is_floating_point:
        indices, values = total._indices(), total._values() / size
    else:
        whole = total.to(torch.int64).coalesce()
        indices, values = whole.indices(), torch.div(whole.values(), size, rounding_mode="trunc").to(dtype)
    return torch.sparse_coo_tensor(indices, values, total.shape, check_invariants=False)
