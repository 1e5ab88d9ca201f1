# SPDX-License-Identifier: Apache-2.0
"""The PyTorch door: `import horovod.torch as hvd`."""

from horovod.common import door
from horovod.common.door import *  # noqa: F403 - what it names in __all__
from horovod.common.util import check_extension
from horovod.torch import elastic
from horovod.torch.compression import Compression, Compressor
from horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from horovod.torch.mpi_ops import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    recv,
    recv_async,
    reducescatter,
    reducescatter_async,
    send,
    send_async,
    sparse_allreduce_async,
    synchronize,
)
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm
from horovod.torch_backend import register

register()  # torch.distributed.init_process_group("horovod"); newer versions of torch do it by themselves

__all__ = [
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_extension",
    "elastic",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "recv",
    "recv_async",
    "reducescatter",
    "reducescatter_async",
    "send",
    "send_async",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += door.__all__
