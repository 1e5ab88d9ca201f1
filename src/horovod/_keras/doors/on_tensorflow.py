# SPDX-License-Identifier: Apache-2.0
"""Adapter for Keras 2 or 3 on TensorFlow, over horovod.tensorflow: in eager mode, in graphs and compiled by XLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet
from horovod.common.supported_methods import method_in
from horovod.tensorflow.compressing import METHODS, CompressedReduction, Memories
from horovod.tensorflow.compression import Compression as Compression
from horovod.tensorflow.elastic import TensorFlowKerasState
from horovod.tensorflow.elastic import run as run
from horovod.tensorflow.functions import broadcast_variables as _broadcast_variables
from horovod.tensorflow.gradients import dense as dense
from horovod.tensorflow.gradients import scaled_local as divided_by_size  # noqa: F401 - one of a door's functions
from horovod.tensorflow.mpi_ops import allgather as allgather
from horovod.tensorflow.mpi_ops import broadcast as broadcast
from horovod.tensorflow.reductions import allreduce as allreduce
from horovod.tensorflow.reductions import grouped_allreduce, reduce_dense
from horovod.tensorflow.reductions import reducescatter as reducescatter

State = TensorFlowKerasState


def tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value)


def confirm(variables: Sequence[Any]) -> None:
    """Do nothing: all data goes through host memory, and is complete when its operation is done."""


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
    """Reduce the dense gradients while ranks compare the contents of the group, then gather the sparse ones."""
    options: dict[str, Any] = {
        "op": op,
        "prescale_factor": prescale,
        "postscale_factor": postscale,
        "process_set": process_set,
    }

    def reduce(places: Sequence[int]) -> list[Any]:
        dense_ones = [tensors[place] for place in places] or [tf.zeros([0])]
        used = compression if places else Compression.none
        return reduce_dense(dense_ones, used, name=name, contents=contents, **options)

    return _reduced(tensors, reduce, name, compression, options)


def compressed_by(compression: Any, op: int) -> CompressedReduction | None:
    """Return the object that applies a compression method and has its state; None for a Compressor."""
    method = method_in(compression, METHODS, "hvd.DistributedOptimizer of Keras on TensorFlow", op)
    return None if method is None else CompressedReduction(method, op, Memories())


def reduce_compressed(
    compressed: CompressedReduction,
    tensors: Sequence[Any],
    variables: Sequence[Any],
    name: str,
    *,
    process_set: ProcessSet,
    contents: str = "",
) -> list[Any]:
    """Reduce the dense gradients by a compression method, then gather the sparse ones without compression."""
    options: dict[str, Any] = {"process_set": process_set, "op": compressed.op}

    def reduce(places: Sequence[int]) -> list[Any]:
        if not places:
            return reduce_dense([tf.zeros([0])], Compression.none, name=name, contents=contents, **options)
        dense_ones = [tensors[place] for place in places]
        own = [variables[place] for place in places]
        found: list[Any] = compressed(dense_ones, own, name=name, process_set=process_set, contents=contents)
        return found

    return _reduced(tensors, reduce, name, Compression.none, options)


def _reduced(
    tensors: Sequence[Any],
    reduce: Callable[[Sequence[int]], list[Any]],
    name: str,
    compression: Any,
    options: dict[str, Any],
) -> list[Any]:
    """Reduce the dense tensors by `reduce`, which gets their indices, and gather the sparse ones. Return all."""
    result = list(tensors)
    sparse = [index for index, tensor in enumerate(tensors) if is_sparse(tensor)]
    others = [index for index in range(len(tensors)) if index not in set(sparse)]
    reduced = reduce(others)
    for index, gradient in zip(others, reduced, strict=False):
        result[index] = gradient
    if sparse:
        with tf.control_dependencies([] if tf.executing_eagerly() else reduced[:1]):
            slices = [tensors[index] for index in sparse]
            gathered = grouped_allreduce(slices, name=name, compression=compression, **options)
        for index, gradient in zip(sparse, gathered, strict=True):
            result[index] = gradient
    return result


def broadcast_variables(variables: Sequence[Any], root_rank: int, name: str) -> None:
    # Keras 3 wraps TensorFlow's variables; in Keras 2 they are TensorFlow's variables.
    own = [variable if isinstance(variable, tf.Variable) else variable.value for variable in variables]
    if own:
        _broadcast_variables(own, root_rank)


def build_model(model: Any, iterator: Any) -> None:
    """Create the model's variables for the batches of an iterator, without consuming a batch.

    Tracing creates them, as in the first training step; nothing is computed.
    """
    batch = iterator.element_spec
    inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
    tf.function(lambda x: model(x)).get_concrete_function(inputs)
