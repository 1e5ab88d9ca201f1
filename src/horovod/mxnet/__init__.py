# SPDX-License-Identifier: Apache-2.0
"""The MXNet door: `import horovod.mxnet as hvd`."""

from horovod.common import door
from horovod.common.door import *  # noqa: F403 - what it names in __all__
from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from horovod.common.util import check_extension, split_list

check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__, "mpi_lib")

from horovod.mxnet.compression import Compression, Compressor  # noqa: E402 - says first what is missing
from horovod.mxnet.functions import allgather_object, broadcast_object  # noqa: E402
from horovod.mxnet.mpi_ops import (  # noqa: E402
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    reducescatter,
)
from horovod.mxnet.mpi_ops import (  # noqa: E402
    shutdown as shutdown,
)
from horovod.mxnet.optimizer import DistributedOptimizer  # noqa: E402
from horovod.mxnet.parameters import broadcast_parameters  # noqa: E402
from horovod.mxnet.trainer import DistributedTrainer  # noqa: E402

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "DistributedTrainer",
    "HorovodInternalError",
    "HorovodMismatchError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "check_extension",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
    "remove_process_set",
    "split_list",
]
__all__ += door.__all__
