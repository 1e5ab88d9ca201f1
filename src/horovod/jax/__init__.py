# SPDX-License-Identifier: Apache-2.0
"""JAX API: `import horovod.jax as hvd`, before the first computation of the script."""

from horovod.common.frameworks import require

require(__name__)

from horovod.common.door import *  # noqa: F403 - what it names in __all__
from horovod.jax import elastic, mpi_ops
from horovod.jax.compression import Compression, Compressor
from horovod.jax.errors import translated_errors
from horovod.jax.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    fold_in_rank,
)
from horovod.jax.local_sgd import DiLoCo, LocalSGD
from horovod.jax.mpi_ops import *  # noqa: F403 - what it names in __all__
from horovod.jax.onebit_adam import OneBitAdam
from horovod.jax.optimizer import DistributedOptimizer, grad, value_and_grad

__all__ = [
    "Compression",
    "Compressor",
    "DiLoCo",
    "DistributedOptimizer",
    "LocalSGD",
    "OneBitAdam",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "fold_in_rank",
    "grad",
    "translated_errors",
    "value_and_grad",
]
__all__ += mpi_ops.__all__
