# SPDX-License-Identifier: Apache-2.0
"""The API of tf.keras, for TensorFlow's Keras 2 and Keras 3: `import horovod.tensorflow.keras as hvd`."""

from __future__ import annotations

from horovod.common.frameworks import require

require(__name__)

from typing import Any

from tensorflow import keras

from horovod import _keras as _impl
from horovod._keras.doors import door_of
from horovod._keras.reduction import checked_groups
from horovod._keras.shared_functions import Functions, load_model_for, partial_optimizer_for
from horovod.common import door
from horovod.common.door import *  # noqa: F403 - what it names in __all__
from horovod.common.objects import allgather_object, broadcast_object
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.rules import Average
from horovod.common.util import is_version_greater_equal_than

Compression = door_of(keras).Compression


def DistributedOptimizer(  # noqa: N802 - the name in all doors
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer like the one given that averages gradients over all ranks before it applies them.

    All gradients of a step are reduced as one unit, or in `groups`: how many, or lists of variables. With
    backward_passes_per_step=k, gradients of k batches are summed (or averaged) before they are reduced and applied.
    """
    return _impl.create_distributed_optimizer(
        keras,
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        checked_groups(groups, num_groups),
        process_set,
        scale_local_gradients,
    )


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce a number, an array or a tensor over all ranks (op: Average by default)."""
    return _impl.allreduce(keras, value, name, average, prescale_factor, postscale_factor, op, compression)


PartialDistributedOptimizer = partial_optimizer_for(keras)
load_model = load_model_for(keras, DistributedOptimizer)

_functions = Functions(keras)
allgather = _functions.allgather
broadcast = _functions.broadcast
reducescatter = _functions.reducescatter
broadcast_global_variables = _functions.broadcast_global_variables

from horovod.tensorflow.keras import callbacks, elastic  # imported late because they import this module

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "callbacks",
    "elastic",
    "is_version_greater_equal_than",
    "load_model",
    "reducescatter",
]
__all__ += door.__all__
