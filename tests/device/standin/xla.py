# SPDX-License-Identifier: Apache-2.0
"""Calls of the CUDA handler of libhvd_xla as an XLA program makes them (xla_frame.cc), on the stand-in's memory."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

from gpu import Ask, Gpu, Tensor

from horovod.common import xla_library
from horovod.common.context_numbers import number_of

DTYPES = {
    "bool": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint8": 6, "uint16": 7, "uint32": 8, "uint64": 9,
    "float16": 10, "float32": 11, "float64": 12, "bfloat16": 16, "float8_e5m2": 19, "float8_e4m3fn": 20,
}  # fmt: skip
INVALID_ARGUMENT, FAILED_PRECONDITION, ABORTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 3, 9, 10, 12, 13, 14


class Buffer(ctypes.Structure):
    """The C struct XLA_FFI_Buffer."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class Frame(ctypes.Structure):
    """The C struct StandinCall of xla_frame.cc."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("context", "kind", "op", "root", "only_root")),
        *((name, ctypes.c_double) for name in ("prescale", "postscale")),
        ("name", ctypes.c_char_p),
        ("stream", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("inputs", ctypes.POINTER(Buffer)),
        ("outputs", ctypes.POINTER(Buffer)),
    )


class XlaError(Exception):
    """Error of the handler, as (code, text)."""


def _library() -> Any:
    return ctypes.CDLL(os.environ["STANDIN_XLA"])


def _handler() -> Any:
    return xla_library.load().handlers.hvd_xla_execute_cuda


def _buffers(tensors: Sequence[Tensor]) -> Any:
    made = (Buffer * len(tensors))()
    for buffer, tensor in zip(made, tensors, strict=True):
        dims = (ctypes.c_int64 * len(tensor.shape))(*tensor.shape)
        data = tensor.address if tensor.nbytes else None  # XLA passes no address for empty arrays
        values = ctypes.sizeof(Buffer), None, DTYPES[tensor.dtype.name], data, len(tensor.shape), dims
        for (field, *_), value in zip(Buffer._fields_, values, strict=True):
            setattr(buffer, field, value)
    return made


def execute(
    gpu: Gpu, ask: Ask, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], stream: int,
    only_root: bool = False,
) -> None:  # fmt: skip
    """Call the handler.

    Return when XLA's thread would continue, and raise XlaError if the handler returned an error.
    """
    frame = Frame(
        number_of(ask.set), ask.kind, ask.op, ask.root, int(only_root), ask.prescale, ask.postscale, name.encode(),
        stream, len(inputs), _buffers(inputs), _buffers(outputs),
    )  # fmt: skip
    text = ctypes.create_string_buffer(8192)
    with gpu.current():
        code = _library().standin_xla_call(_handler(), ctypes.byref(frame), text, ctypes.c_size_t(len(text)))
    if code:
        raise XlaError(code, text.value.decode())


def traits() -> int:
    return int(_library().standin_xla_traits(_handler()))
