# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients: their indices and values are gathered, not reduced."""

from __future__ import annotations

from collections.abc import Callable

import torch

from horovod.common.process_sets import ProcessSet
from horovod.common.rules import Average, Sum
from horovod.torch.adapter import Tensor
from horovod.torch.direct import add, collectives_for, synchronize


def sparse_allreduce(tensor: Tensor, name: str | None, op: int, process_set: ProcessSet) -> Callable[[], Tensor]:
    """Start the two allgathers; what is returned waits for them and gives the sparse sum or average, uncoalesced."""
    if not isinstance(tensor, Tensor) or tensor.layout is not torch.sparse_coo:
        kind = tensor.layout if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(f"sparse_allreduce_async needs a sparse tensor with torch.sparse_coo, not {kind}")
    if op not in (Average, Sum):
        raise ValueError("sparse_allreduce_async can only average and sum; densify the tensor for other operations")
    shape, is_average = tensor.shape, op == Average
    # Along the first dimension, in which an allgather concatenates. The private accessors also take tensors that are
    # not coalesced, which gradients often are not.
    indices = tensor._indices().t().contiguous()
    values = tensor._values().detach().contiguous()
    collectives = collectives_for(values)
    started = [
        add(collectives.allgather(part, f"{name}.{what}" if name else None, process_set, will_wait=False))
        for part, what in ((indices, "indices"), (values, "values"))
    ]

    def finish() -> Tensor:
        every_index, every_value = (synchronize(handle) for handle in started)
        if is_average:
            size = process_set.size() or 1
            rounding = None if every_value.is_floating_point() else "trunc"  # integers stay integers
            every_value = torch.div(every_value, size, rounding_mode=rounding)
        return torch.sparse_coo_tensor(every_index.t(), every_value, shape, check_invariants=False)

    return finish
