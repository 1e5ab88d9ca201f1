# SPDX-License-Identifier: Apache-2.0
"""Keras on TensorFlow, version 2 or 3, over horovod.tensorflow: eager, in graphs and in what XLA compiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.common.process_sets import ProcessSet
from horovod.tensorflow import Compression as Compression
from horovod.tensorflow import allreduce as allreduce
from horovod.tensorflow import reducescatter as reducescatter
from horovod.tensorflow.elastic import TensorFlowKerasState
from horovod.tensorflow.elastic import run as run
from horovod.tensorflow.functions import broadcast_variables as _broadcast_variables
from horovod.tensorflow.gradients import dense as dense
from horovod.tensorflow.gradients import scaled_local as divided_by_size  # noqa: F401 - one of a door's functions
from horovod.tensorflow.mpi_ops import allgather as allgather
from horovod.tensorflow.mpi_ops import broadcast as broadcast
from horovod.tensorflow.reductions import reduce_dense

State = TensorFlowKerasState


def tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value)


def confirm(variables: Sequence[Any]) -> None:
    """Nothing to ask: all that is sent goes through host memory, and is there when its operation is done."""


def is_sparse(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


def is_tracing() -> bool:
    return not tf.executing_eagerly()


def reduce_group(
    tensors: Sequence[Any],
    name: str,
    *,
    op: int,
    prescale: float,
    postscale: float,
    compression: Any,
    process_set: ProcessSet,
    contents: str = "",
) -> list[Any]:
    """Reduce the dense gradients, with which ranks compare the contents of the group, then gather the sparse ones."""
    result = list(tensors)
    sparse = [index for index, tensor in enumerate(tensors) if is_sparse(tensor)]
    others = [index for index in range(len(tensors)) if index not in set(sparse)]
    options: dict[str, Any] = {
        "op": op,
        "prescale_factor": prescale,
        "postscale_factor": postscale,
        "process_set": process_set,
    }
    reduced = reduce_dense(
        [tensors[index] for index in others] or [tf.zeros([0])],
        compression if others else Compression.none,
        name=name,
        contents=contents,
        **options,
    )
    for index, gradient in zip(others, reduced, strict=False):
        result[index] = gradient
    if sparse:
        with tf.control_dependencies([] if tf.executing_eagerly() else reduced[:1]):
            slices = [tensors[index] for index in sparse]
            gathered = hvd.grouped_allreduce(slices, name=name, compression=compression, **options)
        for index, gradient in zip(sparse, gathered, strict=True):
            result[index] = gradient
    return result


def broadcast_variables(variables: Sequence[Any], root_rank: int, name: str) -> None:
    # Keras 3 wraps TensorFlow's variables; those of Keras 2 are variables themselves.
    own = [variable if isinstance(variable, tf.Variable) else variable.value for variable in variables]
    if own:
        _broadcast_variables(own, root_rank)


def build_model(model: Any, iterator: Any) -> None:
    """Make the model's variables for the batches of an iterator, of which none is consumed.

    Tracing makes them, just as in the first training step; nothing is computed.
    """
    batch = iterator.element_spec
    inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
    tf.function(lambda x: model(x)).get_concrete_function(inputs)
