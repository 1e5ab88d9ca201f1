# SPDX-License-Identifier: Apache-2.0
"""The blocking operations as operators of torch, which a compiled graph can hold. Imported while one is traced."""

from horovod.torch.operators.movements import allgather, alltoall, broadcast, broadcast_, grouped_allgather
from horovod.torch.operators.reductions import (
    allreduce,
    allreduce_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    reducescatter,
)

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]
