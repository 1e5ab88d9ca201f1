# SPDX-License-Identifier: Apache-2.0
"""PyTorch API: `import horovod.torch as hvd`."""

from horovod.common.frameworks import require

require(__name__)

from horovod.common.door import *  # noqa: F403 - what it names in __all__
from horovod.common.util import check_extension
from horovod.torch import elastic, mpi_ops, other_reductions
from horovod.torch.compression import Compression, Compressor
from horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from horovod.torch.hooks.registration import register_comm_hook
from horovod.torch.local_sgd import DiLoCo, LocalSGD
from horovod.torch.mpi_ops import *  # noqa: F403 - what it names in __all__
from horovod.torch.onebit_adam import OneBitAdam
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm
from horovod.torch_backend import register

other_reductions.begin()
register()  # for torch.distributed.init_process_group("horovod"); newer versions of torch do this themselves

__all__ = [
    "Compression",
    "Compressor",
    "DiLoCo",
    "DistributedOptimizer",
    "LocalSGD",
    "OneBitAdam",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_extension",
    "elastic",
    "register_comm_hook",
]
__all__ += mpi_ops.__all__
