# SPDX-License-Identifier: Apache-2.0
"""The TensorFlow API: `import horovod.tensorflow as hvd`."""

from horovod.common.frameworks import require

require(__name__)

from typing import Any

from horovod.common import door
from horovod.common.door import *  # noqa: F403 - what it names in __all__
from horovod.common.util import check_extension, gpu_available, split_list
from horovod.tensorflow import elastic
from horovod.tensorflow.adasum_optimizer import _DistributedAdasumOptimizer as _DistributedAdasumOptimizer
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.functions import (
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.mpi_ops import (
    allgather,
    alltoall,
    broadcast,
    broadcast_,
    check_num_rank_power_of_2,
    grouped_allgather,
    handle_average_backwards_compatibility,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from horovod.tensorflow.optimizer import DistributedOptimizer
from horovod.tensorflow.optimizer import _DistributedOptimizer as _DistributedOptimizer
from horovod.tensorflow.reductions import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter
from horovod.tensorflow.session_hook import BroadcastGlobalVariablesHook
from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
from horovod.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from horovod.tensorflow.tape import _DistributedGradientTape as _DistributedGradientTape
from horovod.tensorflow.util import _executing_eagerly as _executing_eagerly
from horovod.tensorflow.util import refs_to_vars, vars_to_refs

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "Compressor",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_extension",
    "check_num_rank_power_of_2",
    "elastic",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "size_op",
    "split_list",
    "vars_to_refs",
]
__all__ += door.__all__


def __getattr__(name: str) -> Any:
    """Import Keras's parts only when they are used (`hvd.callbacks`), so that `import` does not load Keras."""
    if name == "callbacks":
        from horovod.tensorflow.keras import callbacks

        return callbacks
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
