# SPDX-License-Identifier: Apache-2.0
"""Collectives through Python, for TensorFlow versions that cannot load the native operations.

In a graph each collective is a stateful tf.numpy_function, which blocks a thread until it is done. tf.function runs
them one at a time in program order, which is equal on all ranks. In a graph of a v1 Session their order is undefined:
there, reduce all tensors of a step in one grouped call. In a graph, TensorFlow turns a ValueError into an
InvalidArgumentError and any other exception into an UnknownError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from horovod.common.arrays import Array, NumpyAdapter
from horovod.common.calls import ALLTOALL
from horovod.common.context import default_context
from horovod.common.handles import Pending
from horovod.common.ops import Collectives
from horovod.common.process_sets import Membership, ProcessSet
from horovod.tensorflow.calls import Call, Tensor, last_component, static_shape
from horovod.tensorflow.errors import as_tensorflow


class _NamedByNode(Membership):
    """Member of a process set that does not add the operation to names, because TensorFlow's node names contain it."""

    __slots__ = ()

    def full_name(self, operation: str, name: str | None) -> str:
        return name or operation


class _Collectives(Collectives[Array]):
    def _member(self, process_set: ProcessSet) -> Membership:
        member = super()._member(process_set)
        return _NamedByNode(member.world, member.id, member.ranks, member.ranks[member.index])


_collectives = _Collectives(default_context, NumpyAdapter())


def run(call: Call, tensors: Sequence[Tensor], splits: Tensor | None) -> list[Tensor]:
    """Run a collective. Return the results in the order of the tensors.

    For an alltoall, the results are its output and the received splits.
    """
    inputs = [*tensors] if splits is None else [*tensors, splits]
    types = [tensor.dtype for tensor in tensors] + [tf.int32] * (call.kind == ALLTOALL)
    if tf.executing_eagerly():
        try:
            arrays = _perform(call, call.eager_name(), [np.asarray(tensor) for tensor in inputs])
        except Exception as error:
            raise as_tensorflow(error, call.type_name) from error
        return [tf.convert_to_tensor(array, dtype) for array, dtype in zip(arrays, types, strict=True)]
    name = tf.compat.v1.get_default_graph().unique_name(call.node_name(tensors))
    engine_name = last_component(name) if call.ignore_name_scope else name
    results = tf.numpy_function(lambda *arrays: _perform(call, engine_name, arrays), inputs, types)
    for tensor, result in zip(tensors, results, strict=False):
        result.set_shape(static_shape(call, tensor))
    return list(results)


def _perform(call: Call, name: str, arrays: Sequence[Array]) -> list[Array]:
    result = default_context.handles.finish(_start(call, name, [np.asarray(array, order="C") for array in arrays]))
    return list(result) if isinstance(result, tuple) else [result]


def _start(call: Call, name: str, arrays: list[Array]) -> Pending:
    if call.kind == ALLTOALL:
        arrays, splits = arrays[:1], arrays[1] if len(arrays) > 1 else None
        return _collectives.start(replace(call, name=name, splits=splits), arrays, will_wait=True)
    return _collectives.start(replace(call, name=name), arrays, will_wait=True)


def join() -> Tensor:
    return _scalar("HorovodJoin", _collectives.join)


def topology(question: str, process_set_id: int) -> Tensor:
    """Return size, rank, local_size, local_rank or process_set_included as it is when the graph runs."""
    return _scalar("Horovod" + question.title().replace("_", ""), lambda: answer(question, process_set_id))


def answer(question: str, process_set_id: int) -> int:
    topology = default_context.topology
    if question == "size":
        return default_context.registered_sets.with_id(process_set_id).size() or 0
    if question == "process_set_included":
        return int(bool(default_context.registered_sets.with_id(process_set_id).included()))
    return int(getattr(topology, question))


def _scalar(operation: str, function: Callable[[], int]) -> Tensor:
    if tf.executing_eagerly():
        try:
            return tf.constant(function(), tf.int32)
        except Exception as error:
            raise as_tensorflow(error, operation) from error
    result = tf.numpy_function(lambda: np.int32(function()), [], tf.int32)
    result.set_shape([])
    return result
