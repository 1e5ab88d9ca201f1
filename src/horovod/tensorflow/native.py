# SPDX-License-Identifier: Apache-2.0
"""Collectives as native asynchronous TensorFlow operations (libhvd_tensorflow): no Python runs and no thread waits.

Graphs name process sets by numbers that stay valid across worlds. This module tells the library which sets exist.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import struct
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from horovod.common.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER
from horovod.common.context import default_context
from horovod.common.context_numbers import number_of, set_of
from horovod.common.process_sets import ProcessSet
from horovod.common.settings import value_of
from horovod.tensorflow.calls import Call, Tensor

_SWITCH = "HOROVOD_TENSORFLOW_NATIVE"
_LIBRARY = Path(__file__).parents[1] / "libhvd_tensorflow.so"
_FIRST_OPERATION = "horovod_allreduce"

Gradient = Callable[[Call, Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], list[Any]]


def _load() -> tuple[Any, str | None]:
    """Return the module of operations and None, or None and the reason why there is none."""
    if value_of(_SWITCH, os.environ) is False:
        return None, f"{_SWITCH}={os.environ[_SWITCH]} is set"
    if not _LIBRARY.exists():
        return None, f"{_LIBRARY} is missing from this installation"
    try:
        module = tf.load_op_library(str(_LIBRARY))
    except tf.errors.OpError as error:
        return None, f"TensorFlow {tf.__version__} could not load {_LIBRARY}: {error.message}"
    if not hasattr(module, _FIRST_OPERATION):
        missing = ctypes.CDLL(str(_LIBRARY)).hvd_tensorflow_missing
        missing.restype = ctypes.c_char_p
        function = (missing() or b"its C interface").decode()
        return None, f"TensorFlow {tf.__version__} has no {function}: it is older than 2.13, or built without it"
    return module, None


@functools.cache
def load() -> tuple[Any, str | None]:
    """Return the module of operations and None, or None and the reason why there is none.

    Load the library only once.
    """
    module, reason = _load()
    if module is not None:
        default_context.observe(_Observer())
    return module, reason


class _Observer:
    """Observer that tells the library which process sets are added and removed."""

    def __init__(self) -> None:
        self._library = library = ctypes.CDLL(str(_LIBRARY))
        number, small = ctypes.c_int64, ctypes.c_int32
        library.hvd_tensorflow_bind.argtypes = [number, ctypes.c_void_p, small, small, small, small]
        library.hvd_tensorflow_unbind.argtypes = [number]
        library.hvd_tensorflow_place.argtypes = [small, small, small]
        library.hvd_tensorflow_process_set.argtypes = [small, small, small]
        library.hvd_tensorflow_forget_process_set.argtypes = [small]
        for name in ("bind", "unbind", "place", "process_set", "forget_process_set"):
            getattr(library, f"hvd_tensorflow_{name}").restype = None

    def bound(self, process_set: ProcessSet) -> None:
        member = process_set.membership
        if member is None:
            return
        topology = default_context.topology
        if member.id == 0:
            self._library.hvd_tensorflow_place(topology.rank, topology.local_rank, topology.local_size)
        self._library.hvd_tensorflow_process_set(member.id, member.size, member.index >= 0)
        if member.index >= 0:
            self._library.hvd_tensorflow_bind(
                number_of(process_set), member.world.address, member.id, member.size, member.index, topology.rank
            )

    def unbound(self, process_set: ProcessSet) -> None:
        self._library.hvd_tensorflow_unbind(number_of(process_set))
        if process_set.membership is not None:
            self._library.hvd_tensorflow_forget_process_set(process_set.membership.id)


def run(module: Any, call: Call, tensors: Sequence[Tensor], splits: Tensor | None) -> list[Tensor]:
    """Run a collective. Return the results in the order of the tensors.

    For an alltoall, the results are its output and the received splits.
    """
    attributes: dict[str, Any] = {
        "reduce_op": call.op,
        "root_rank": call.root,
        "context": number_of(call.process_set),
        "prescale_bits": _bits(call.prescale),
        "postscale_bits": _bits(call.postscale),
        "ignore_name_scope": call.ignore_name_scope,
    }
    if call.contents:
        attributes["contents"] = call.contents
    if call.kind == ALLTOALL:
        inputs = [tensors[0], tf.zeros([0], tf.int32) if splits is None else splits]
    else:
        inputs = [list(tensors)] if call.grouped else list(tensors)
    function = _function(module, call.type_name)
    if tf.executing_eagerly():
        results = function(*inputs, tensor_name=call.eager_name(), **attributes)
    else:
        results = function(*inputs, program=_program(), name=call.node_name(tensors), **attributes)
        _let_run(results[0] if isinstance(results, (list, tuple)) else results)
    return list(results) if isinstance(results, (list, tuple)) else [results]


def join(module: Any) -> Tensor:
    if tf.executing_eagerly():
        last = module.horovod_join(tensor_name="join")
        member = default_context.global_set.membership
        if member is not None:
            member.restart_numbers()
        return last
    # A join waits for all that the graph has started before it, because this rank takes part in no collective after a
    # join.
    graph = tf.compat.v1.get_default_graph()
    with tf.control_dependencies([operation for operation in (it() for it in _started(graph)) if operation]):
        return module.horovod_join(tensor_name="join", program=_program(), name="HorovodJoin")


def topology(module: Any, question: str, process_set_id: int, name: str | None) -> Tensor:
    result = getattr(module, f"horovod_{question}")(process_set_id=process_set_id, name=name)
    if not tf.executing_eagerly():
        _let_run(result)
    return result


@functools.cache
def _function(module: Any, type_name: str) -> Any:
    words = type_name.removeprefix("HorovodGrouped")
    stem = type_name.removeprefix("Horovod") if words == type_name else f"grouped_{words}"
    return getattr(module, f"horovod_{stem.lower()}")


def _bits(factor: float) -> int:
    """Return the bits of a double as an integer, because TensorFlow's attributes cannot hold a double."""
    return int(struct.unpack("<q", struct.pack("<d", factor))[0])


def _factor(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


# Graphs

_programs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_program_numbers = itertools.count(1)
_started_in: weakref.WeakKeyDictionary[Any, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()


def _program() -> int:
    """Return a number for the outermost graph that is being built; functions inside a graph share its number."""
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and graph.outer_graph.building_function:
        graph = graph.outer_graph
    if graph not in _programs:
        _programs[graph] = next(_program_numbers)
    return _programs[graph]


def _started(graph: Any) -> list[weakref.ref[Any]]:
    return _started_in.setdefault(graph, [])


def _let_run(result: Tensor) -> None:
    """Let an operation of a tf.function run in parallel with others.

    TensorFlow runs operations with side effects serially.
    """
    operation = result.op
    _started(operation.graph).append(weakref.ref(operation))
    manager = getattr(operation.graph, "experimental_acd_manager", None)
    if manager is not None:
        manager.run_independently(operation)


# Gradients

_TYPES = {
    call.type_name: call
    for call in (
        Call(ALLREDUCE),
        Call(ALLREDUCE, grouped=True),
        Call(ALLGATHER),
        Call(ALLGATHER, grouped=True),
        Call(BROADCAST),
        Call(BROADCAST, grouped=True),
        Call(ALLTOALL),
        Call(REDUCESCATTER),
        Call(REDUCESCATTER, grouped=True),
    )
}


def register_gradients(gradient: Gradient) -> None:
    """Register the gradient of every operation. Call once, after the operations are loaded."""

    def of_operation(operation: Any, *upstream: Tensor) -> list[Any]:
        return gradient(_call_of(operation), list(operation.inputs), list(operation.outputs), upstream)

    for type_name in _TYPES:
        tf.RegisterGradient(type_name)(of_operation)


def _call_of(operation: Any) -> Call:
    kind = _TYPES[operation.type]
    return Call(
        kind.kind,
        set_of(operation.get_attr("context")),
        None,
        operation.get_attr("reduce_op"),
        _factor(operation.get_attr("prescale_bits")),
        _factor(operation.get_attr("postscale_bits")),
        grouped=kind.grouped,
        root=operation.get_attr("root_rank"),
        ignore_name_scope=operation.get_attr("ignore_name_scope"),
    )
