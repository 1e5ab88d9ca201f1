# SPDX-License-Identifier: Apache-2.0
"""Collectives inside tf.function(jit_compile=True): custom calls of the XLA handlers that horovod.jax uses, too.

XLA cannot call a TensorFlow operation. So the call is written in StableHLO and put into the graph as a module that XLA
compiles with the rest. Shapes and the number of ranks are fixed at tracing time.

XLA runs the calls of a small program one at a time, in an order that may depend on constants that differ between ranks;
ranks would then deadlock. So each call of a graph takes a token that the call before it returns.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import struct
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from horovod.common import xla_library
from horovod.common.calls import ALLTOALL, result_shape
from horovod.common.context import default_context
from horovod.common.context_numbers import number_of
from horovod.tensorflow.calls import Call, Tensor, last_component

OLDEST = (2, 19)
_MODULE_VERSION = 9
_XLA = "libtensorflow_cc.so.2"
_TOKEN = "_horovod_token"
_GET_API = "_ZN3xla3ffi12GetXlaFfiApiEv"

# MLIR's type names.
_TYPES = {
    tf.float16: "f16",
    tf.bfloat16: "bf16",
    tf.float32: "f32",
    tf.float64: "f64",
    tf.int8: "i8",
    tf.int16: "i16",
    tf.int32: "i32",
    tf.int64: "i64",
    tf.uint8: "ui8",
    tf.uint16: "ui16",
    tf.uint32: "ui32",
    tf.uint64: "ui64",
    tf.bool: "i1",
}


def is_compiling() -> bool:
    """Return True if XLA will compile the whole function that is being traced."""
    if tf.executing_eagerly():
        return False
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


@functools.cache
def unavailable() -> str | None:
    """Return why collectives cannot be compiled here, or None after registering the handlers with TensorFlow's XLA."""
    version = tuple(int(part) for part in tf.__version__.split(".")[:2])
    if version < OLDEST:
        return f"it needs TensorFlow {'.'.join(map(str, OLDEST))} or newer, and this is {tf.__version__}"
    if not xla_library.PATH.exists():
        return f"{xla_library.PATH} is missing from this installation"
    try:
        get_api = getattr(ctypes.CDLL(_XLA), _GET_API)
    except (OSError, AttributeError) as error:
        return f"this TensorFlow does not expose its XLA ({error})"
    get_api.restype = ctypes.c_void_p
    if not xla_library.load().register(get_api()):
        return f"the XLA of TensorFlow {tf.__version__} refused the handlers"
    return None


def _refuse(call: Call, why: str) -> NotImplementedError:
    return NotImplementedError(
        f"{call.type_name} cannot be part of a function with jit_compile=True: {why}. Compile the computation before "
        "and after it in functions of their own, or leave jit_compile out"
    )


def run(call: Call, tensors: Sequence[Tensor], splits: Tensor | None) -> list[Tensor]:
    """Run a collective. Return the results in the order of the tensors.

    For an alltoall, the results are its output and the received splits.
    """
    why = unavailable()
    if why is None and splits is not None:
        why = "the shape of an alltoall with splits depends on the other ranks"
    if why is None and not all(tensor.shape.is_fully_defined() for tensor in tensors):
        why = "its shapes must be known when the function is traced; pass tensors, or an input_signature, without None"
    if why is not None:
        raise _refuse(call, why)
    member = default_context.membership_of(call.process_set)
    shapes = [result_shape(call, tuple(tensor.shape), member) for tensor in tensors]
    graph = tf.compat.v1.get_default_graph()
    token = getattr(graph, _TOKEN, None)
    inputs = [*tensors, tf.zeros([1], tf.int8) if token is None else token]
    *results, token = _call_module(inputs, _module(call, inputs, [*shapes, (1,)]), [*shapes, (1,)])
    setattr(graph, _TOKEN, token)
    if call.kind == ALLTOALL:
        results.append(tf.fill([member.size], tf.constant(shapes[0][0] // member.size, tf.int32)))
    return results


def topology(question: str, process_set_id: int) -> Tensor:
    """Return the answer (rank, size, …) as a constant fixed at tracing time: compiled code cannot query the engine."""
    from horovod.tensorflow import through_python

    return tf.constant(through_python.answer(question, process_set_id), tf.int32)


_program = itertools.count(1)


def _module(call: Call, tensors: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> str:
    """Return the call in StableHLO, with the token as the last tensor. engine/bindings/xla reads its attributes."""
    name = tf.compat.v1.get_default_graph().unique_name(call.node_name(tensors[:-1]))
    attributes = {
        "kind": f"{call.kind} : i64",
        "op": f"{call.op} : i64",
        "root": f"{call.root} : i64",
        "only_root": f"{int(call.only_root)} : i64",
        "token": "1 : i64",
        "prescale": f"0x{struct.pack('>d', call.prescale).hex()} : f64",
        "postscale": f"0x{struct.pack('>d', call.postscale).hex()} : f64",
        "context": f"{number_of(call.process_set)} : i64",
        "program": f"{-next(_program)} : i64",  # negative to mark a program that XLA compiles again for other shapes
        "type": f'"{call.type_name}"',
        "contents": f'"{call.contents}"',
        "name": f'"{last_component(name) if call.ignore_name_scope else name}"',
    }
    config = ", ".join(f"{key} = {value}" for key, value in attributes.items())
    inputs = [_tensor_type(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]
    outputs = [_tensor_type(tensor.dtype, shape) for tensor, shape in zip(tensors, shapes, strict=True)]
    count, ins, outs = len(tensors), ", ".join(inputs), ", ".join(outputs)
    arguments = ", ".join(f"%arg{i}: {one}" for i, one in enumerate(inputs))
    operands = ", ".join(f"%arg{i}" for i in range(count))
    results = ", ".join(f"%0#{i}" for i in range(count)) if count > 1 else "%0"
    return f"""module @horovod {{
  func.func public @main({arguments}) -> ({outs}) {{
    {"%0:" + str(count) if count > 1 else "%0"} = stablehlo.custom_call @{xla_library.TARGET}({operands}) {{
      api_version = 4 : i32, has_side_effect = true, backend_config = {{{config}}}}} : ({ins}) -> ({outs})
    return {results} : {outs}
  }}
}}"""


def _tensor_type(dtype: Any, shape: tuple[int, ...]) -> str:
    if dtype not in _TYPES:
        raise NotImplementedError(f"dtype {dtype.name} is not supported in a function with jit_compile=True")
    return f"tensor<{'x'.join([*map(str, shape), _TYPES[dtype]])}>"


def _call_module(tensors: Sequence[Tensor], text: str, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    stablehlo = importlib.import_module("tensorflow.compiler.mlir.stablehlo.stablehlo")
    xla = importlib.import_module("tensorflow.compiler.tf2xla.python.xla")
    module = stablehlo.serialize_portable_artifact_str(text, stablehlo.get_current_version())
    results = xla.call_module(
        list(tensors),
        version=_MODULE_VERSION,
        module=module,
        Tout=[tensor.dtype for tensor in tensors],
        Sout=[tf.TensorShape(shape) for shape in shapes],
        platforms=["CPU"],
    )
    return list(results) if isinstance(results, (list, tuple)) else [results]
