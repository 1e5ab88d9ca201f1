# SPDX-License-Identifier: Apache-2.0
"""The NumPy API: `import horovod.numpy as hvd`. Use it with your own autograd engine, or without any framework."""

from horovod.common.door import *  # noqa: F403 - what it names in __all__
from horovod.numpy import elastic, mpi_ops
from horovod.numpy.compressing import codec
from horovod.numpy.compression import Compression, Compressor
from horovod.numpy.functions import allgather_object, broadcast_object, broadcast_parameters
from horovod.numpy.mpi_ops import *  # noqa: F403 - what it names in __all__

__all__ = [
    "Compression",
    "Compressor",
    "allgather_object",
    "broadcast_object",
    "broadcast_parameters",
    "codec",
    "elastic",
]
__all__ += mpi_ops.__all__
