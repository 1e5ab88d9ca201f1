# SPDX-License-Identifier: Apache-2.0
"""The MXNet API: `import horovod.mxnet as hvd`."""

from horovod.common.frameworks import require

require(__name__)

from horovod.common.door import *  # noqa: F403 - what it names in __all__
from horovod.common.util import check_extension, split_list
from horovod.mxnet import mpi_ops
from horovod.mxnet.compression import Compression, Compressor
from horovod.mxnet.functions import allgather_object, broadcast_object
from horovod.mxnet.mpi_ops import *  # noqa: F403 - what it names in __all__
from horovod.mxnet.optimizer import DistributedOptimizer
from horovod.mxnet.parameters import broadcast_parameters
from horovod.mxnet.trainer import DistributedTrainer

__all__ = [
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "DistributedTrainer",
    "allgather_object",
    "broadcast_object",
    "broadcast_parameters",
    "check_extension",
    "split_list",
]
__all__ += mpi_ops.__all__
