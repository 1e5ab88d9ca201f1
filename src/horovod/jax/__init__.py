# SPDX-License-Identifier: Apache-2.0
"""The JAX door: `import horovod.jax as hvd`, before the first computation of the script."""

from horovod.common import door
from horovod.common.door import *  # noqa: F403 - what it names in __all__
from horovod.jax import elastic
from horovod.jax.compression import Compression, Compressor
from horovod.jax.errors import translated_errors
from horovod.jax.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    fold_in_rank,
)
from horovod.jax.mpi_ops import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_async,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter,
    reducescatter_async,
    synchronize,
)
from horovod.jax.optimizer import DistributedOptimizer, grad, value_and_grad

__all__ = [
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "fold_in_rank",
    "grad",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
    "translated_errors",
    "value_and_grad",
]
__all__ += door.__all__
