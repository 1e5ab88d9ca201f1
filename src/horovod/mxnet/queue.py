# SPDX-License-Identifier: Apache-2.0
"""Collectives in MXNet's own queue (engine/bindings/mxnet): they start when MXNet has computed their arrays.

Callers get results at once, as from any MXNet function; a failure is raised where a result is waited for.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mxnet as mx
from mxnet.base import _LIB, check_call

from horovod.common.context import default_context
from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError, HorovodWarning

if TYPE_CHECKING:
    from horovod._engine import Output, World

LIBRARY_PATH = str(Path(__file__).parents[1] / "libhvd_mxnet.so")


class _Operation(ctypes.Structure):
    """hvd_op of hvd/engine.h."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("kind", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("reduce_op", ctypes.c_int32),
        ("root", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("nsplits", ctypes.c_int32),
        ("name", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("splits", ctypes.POINTER(ctypes.c_int64)),
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("allocate", ctypes.c_void_p),
        ("allocate_context", ctypes.c_void_p),
        ("wire_dtype", ctypes.c_int32),
    )


def _load() -> ctypes.CDLL:
    if not mx.__version__.startswith("1."):
        # Their queue calls back in another way, so this would not fail but crash.
        raise ImportError(f"horovod.mxnet works with MXNet 1.9, not with {mx.__version__}: pip install mxnet==1.9.1")
    library = ctypes.CDLL(LIBRARY_PATH)
    library.hvd_mxnet_use.argtypes = [ctypes.c_void_p]
    library.hvd_mxnet_use.restype = ctypes.c_char_p
    library.hvd_mxnet_push.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.POINTER(_Operation),
        ctypes.c_int32,
        ctypes.c_char_p,
        ctypes.c_int32,
    ]
    if os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine":
        warnings.warn(
            "NaiveEngine drops the errors of asynchronous operations: a failed collective goes unseen",
            HorovodWarning,
            stacklevel=2,
        )
    missing = library.hvd_mxnet_use(_LIB._handle)
    if missing:
        raise ImportError(f"horovod.mxnet needs MXNet 1.9: {mx.__version__} has no {missing.decode()}")
    library.hvd_mxnet_memory.argtypes = [ctypes.c_void_p]
    library.hvd_mxnet_memory.restype = ctypes.c_void_p
    whole, other = mx.nd.zeros(4), mx.nd.zeros(4)
    memory = [library.hvd_mxnet_memory(array.handle) for array in (whole, whole[2:], other)]
    if memory[0] != memory[1] or memory[0] == memory[2]:
        raise ImportError(
            f"horovod.mxnet does not know how MXNet {mx.__version__} lays out its arrays; use MXNet 1.9.1"
        )
    return library


library = _load()


def _failure(text: str) -> HorovodInternalError:
    """The exception for what Task::Note wrote: `class: lost rank, operation`, then the text."""
    first, _, message = text.partition("\n")
    kind, _, about = first.partition(": ")
    rank, _, operation = about.partition(" ")
    made = HorovodMismatchError if kind == "HorovodMismatchError" else HorovodInternalError
    return made(message, lost_rank=None if rank.startswith("-") else int(rank), operation=operation)


# MXNet raises what is registered under the name that an error's text starts with.
mx.error.register("HorovodInternalError", _failure)
mx.error.register("HorovodMismatchError", _failure)


class Queue:
    """Takes calls in a World's stead and lets MXNet submit them. Its handles are 0: nobody waits for them."""

    def __init__(self) -> None:
        self._world: World | None = None
        self.priority = 0

    def aim(self, world: World) -> None:
        """From now on for this world."""
        if world is not self._world:
            settle()  # nothing in the queue may know the old world when it goes
            self._world = world

    def submit(
        self,
        process_set: int,
        kind: int,
        name: str,
        dtype: int,
        shape: tuple[int, ...],
        input: int,
        output: int,
        reduce_op: int = 1,
        prescale: float = 1.0,
        postscale: float = 1.0,
        root: int = -1,
        splits: Sequence[int] = (),
        will_wait: bool = False,
        wire_dtype: int = 0,
    ) -> int:
        operation = _describe(kind, name, dtype, shape, input, output, reduce_op, prescale, postscale, wire_dtype)
        operation.root = root
        operation.nsplits = len(splits)
        operation.splits = (ctypes.c_int64 * len(splits))(*splits)
        return self._push(process_set, operation, 1, None)

    def submit_group(
        self,
        process_set: int,
        kind: int,
        group: str,
        names: Sequence[str],
        dtypes: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        inputs: Sequence[int],
        outputs: Sequence[int],
        reduce_op: int = 1,
        prescale: float = 1.0,
        postscale: float = 1.0,
        root: int = -1,
        will_wait: bool = False,
        wire_dtype: int = 0,
    ) -> int:
        described = [
            _describe(kind, *tensor, reduce_op, prescale, postscale, wire_dtype)
            for tensor in zip(names, dtypes, shapes, inputs, outputs, strict=True)
        ]
        for operation in described:
            operation.root = root
        operations = (_Operation * len(described))(*described)
        return self._push(process_set, operations, len(described), group.encode())

    # Results are MXNet's arrays, and MXNet waits for them.

    def poll(self, handle: int) -> bool:
        return True

    def wait(self, handle: int) -> None:
        """Nothing to wait for here."""

    finish = release = wait

    def take_output(self, handle: int, index: int = 0) -> tuple[Output, int]:
        raise NotImplementedError("MXNet's queue fills arrays that are there; it allocates none")

    def received_splits(self, handle: int, members: int) -> list[int]:
        raise NotImplementedError("MXNet's queue has no results but arrays")

    def _push(self, process_set: int, operations: Any, count: int, group: bytes | None) -> int:
        assert self._world is not None
        address = self._world.address
        check_call(library.hvd_mxnet_push(address, process_set, operations, count, group, self.priority))
        return 0


def _describe(
    kind: int,
    name: str,
    dtype: int,
    shape: tuple[int, ...],
    input: int,
    output: int,
    reduce_op: int,
    prescale: float,
    postscale: float,
    wire_dtype: int,
) -> _Operation:
    extents = (ctypes.c_int64 * len(shape))(*shape)
    operation = _Operation(ctypes.sizeof(_Operation), kind, dtype, reduce_op, -1, -1, len(shape), 0, name.encode())
    operation.shape = extents
    operation.input, operation.output = input, output
    operation.prescale, operation.postscale = prescale, postscale
    operation.wire_dtype = wire_dtype
    return operation


def settle() -> None:
    """Wait until MXNet's queue is empty; what fails in it now has nobody left to tell."""
    try:
        mx.nd.waitall()
    except (RuntimeError, ValueError, NotImplementedError):
        pass


def leave() -> None:
    """Shut down. What this rank has queued still runs first, for the others count on it, unless it is failing."""
    if default_context.is_initialized and sys.exc_info()[0] is None and not hasattr(sys, "last_value"):
        settle()
    default_context.shutdown()
    settle()


atexit.register(leave)
