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
    """Return an optimizer of the same class that reduces gradients over all ranks before it applies them.

    It has the options and the state of the given optimizer. Models that are saved with it hold the original class, so
    they load without Horovod.

    Args:
        optimizer: The optimizer to wrap.
        name: Name of the optimizer, which ranks also match.
        device_dense: Has no effect.
        device_sparse: Has no effect.
        compression: hvd.Compression.none, fp16 or bf16, your own subclass of the backend's Compressor, or on TensorFlow
            and PyTorch a method with arguments such as hvd.Compression.int8().
        sparse_as_dense: Convert sparse gradients to dense ones before the reduction.
        gradient_predivide_factor: Divide gradients by this factor before the reduction, and by the rest of the number
            of ranks afterwards. It needs op=hvd.Average.
        op: hvd.Average (the default) or hvd.Sum.
        backward_passes_per_step: Number of backward passes whose gradients are accumulated before they are reduced.
        average_aggregated_gradients: Divide accumulated gradients by backward_passes_per_step.
        num_groups: Older argument for a number of groups; use `groups`.
        groups: Number of groups in which gradients are reduced, or a list of lists of variables. By default all
            gradients are one group.
        process_set: The ranks that take part. By default all ranks of the job.
        scale_local_gradients: Divide the gradients of variables that stay on this rank by the number of ranks.

    Returns:
        The new optimizer.

    Raises:
        ValueError: The first argument is no Keras optimizer or is wrapped already, or arguments are not valid.

    Example:
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size()))
        >>> keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)]).compile(loss='mse', optimizer=optimizer)
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
    """Reduce a value over all ranks and return the result on every rank.

    Args:
        value: A number, an array or a tensor.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        average: Deprecated; use `op`. False means hvd.Sum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        compression: hvd.Compression.none, fp16 or bf16 (the type in which floating-point values are sent), or your own
            subclass of the backend's Compressor.

    Returns:
        A tensor of Keras's backend.

    Raises:
        HorovodInternalError: A rank failed or left the job. On TensorFlow, an error of tf.errors.

    Example:
        >>> value = float(hvd.rank())
        >>> float(hvd.allreduce(value, op=hvd.Sum))  # on 2 ranks: 1.0
    """
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
