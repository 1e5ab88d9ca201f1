# SPDX-License-Identifier: Apache-2.0
"""Blocking operations as torch operators, which a compiled graph can hold. Imported only while a graph is traced."""

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
