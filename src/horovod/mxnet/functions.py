# SPDX-License-Identifier: Apache-2.0
"""Functions built on the operations: exchange of objects."""

from horovod.common.objects import allgather_object as allgather_object
from horovod.common.objects import broadcast_object as broadcast_object
from horovod.mxnet.mpi_ops import allgather as allgather
from horovod.mxnet.mpi_ops import broadcast_ as broadcast_
from horovod.mxnet.mpi_ops import rank as rank
from horovod.mxnet.mpi_ops import size as size
