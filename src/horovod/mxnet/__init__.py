# SPDX-License-Identifier: Apache-2.0
"""The MXNet API: `import horovod.mxnet as hvd`."""

from horovod.common.door import *  # noqa: F403 - what it names in __all__
from horovod.common.util import check_extension, split_list

check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__, "mpi_lib")

from horovod.mxnet import mpi_ops  # noqa: E402
from horovod.mxnet.compression import Compression, Compressor  # noqa: E402 - says first what is missing
from horovod.mxnet.functions import allgather_object, broadcast_object  # noqa: E402
from horovod.mxnet.mpi_ops import *  # noqa: E402, F403 - what it names in __all__
from horovod.mxnet.optimizer import DistributedOptimizer  # noqa: E402
from horovod.mxnet.parameters import broadcast_parameters  # noqa: E402
from horovod.mxnet.trainer import DistributedTrainer  # noqa: E402

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
