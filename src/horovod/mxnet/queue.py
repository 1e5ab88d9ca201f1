# SPDX-License-Identifier: Apache-2.0
"""Collectives in MXNet's own queue (engine/bindings/mxnet). They start when MXNet has computed their inputs.

Callers get results at once, as from any MXNet function. A failure is raised where the program waits for a result.
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
from mxnet.base import _LIB, MXNetError, check_call

from horovod.common import threads_at_exit, waits
from horovod.common.context import default_context
from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError, HorovodWarning

if TYPE_CHECKING:
    from horovod._engine import EngineCall, Output, TensorLocation, World

LIBRARY_PATH = str(Path(__file__).parents[1] / "libhvd_mxnet.so")


def _load() -> ctypes.CDLL:
    if not mx.__version__.startswith("1."):
        # Refuse versions other than 1.x, because their queue calls back in another way, and the process would crash.
        raise ImportError(f"horovod.mxnet works with MXNet 1.9, not with {mx.__version__}: pip install mxnet==1.9.1")
    library = ctypes.CDLL(LIBRARY_PATH)
    library.hvd_mxnet_use.argtypes = [ctypes.c_void_p]
    library.hvd_mxnet_use.restype = ctypes.c_char_p
    handle, number, factor, text = ctypes.c_void_p, ctypes.c_int32, ctypes.c_double, ctypes.c_char_p
    numbers = ctypes.POINTER(ctypes.c_int64)
    library.hvd_mxnet_new.argtypes = [handle, number, text]
    library.hvd_mxnet_new.restype = handle
    library.hvd_mxnet_add.argtypes = [
        *(handle, number, text, number, numbers, number, handle, handle),
        *(number, factor, factor, number, numbers, number, number),
    ]
    library.hvd_mxnet_add.restype = None
    library.hvd_mxnet_push.argtypes = [handle, number]
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
waits.frameworks_submit()  # the threads of MXNet's queue submit operations


class HorovodArgumentError(MXNetError, ValueError):  # type: ignore[misc]
    """Error for invalid arguments.

    It is a ValueError as in all framework APIs, and an MXNetError as in MXNet's own operations.
    """


def _failure(text: str) -> HorovodInternalError:
    """Return the exception for a text of the native library: `class: lost rank, operation`, then the message."""
    first, _, message = text.partition("\n")
    kind, _, about = first.partition(": ")
    rank, _, operation = about.partition(" ")
    made = HorovodMismatchError if kind == "HorovodMismatchError" else HorovodInternalError
    return made(message, lost_rank=None if rank.startswith("-") else int(rank), operation=operation)


# MXNet raises the class that is registered under the first word of an error's text.
mx.error.register("HorovodArgumentError", lambda text: HorovodArgumentError(text.partition(": ")[2]))
mx.error.register("HorovodInternalError", _failure)
mx.error.register("HorovodMismatchError", _failure)


class Queue:
    """Object that takes a World's calls and lets MXNet submit them.

    All its handles are 0, because callers wait for MXNet's arrays instead.
    """

    def __init__(self) -> None:
        self._world: World | None = None
        self.priority = 0

    def aim(self, world: World) -> None:
        """Submit to this world from now on."""
        if world is not self._world:
            settle()  # operations in the queue must not refer to the old world after it is freed
            self._world = world

    def submit(
        self, process_set: int, name: str, call: EngineCall, tensor: TensorLocation, splits: Sequence[int] = ()
    ) -> int:
        task = self._new(process_set, None)
        _add(task, name, call, tensor, splits)
        return self._push(task)

    def submit_group(
        self, process_set: int, group: str, names: Sequence[str], call: EngineCall, tensors: Sequence[TensorLocation]
    ) -> int:
        task = self._new(process_set, group)
        for name, tensor in zip(names, tensors, strict=True):
            _add(task, name, call, tensor, ())
        return self._push(task)

    # These methods do nothing, because results are MXNet's arrays, and MXNet waits for them.

    def poll(self, handle: int) -> bool:
        return True

    def wait(self, handle: int) -> None:
        """Do nothing, because MXNet waits for its arrays."""

    finish = release = wait

    def take_output(self, handle: int, index: int = 0) -> tuple[Output, int]:
        raise NotImplementedError("MXNet's queue cannot allocate outputs; it writes to arrays that exist")

    def received_splits(self, handle: int, members: int) -> list[int]:
        raise NotImplementedError("results of MXNet's queue are always arrays")

    def _new(self, process_set: int, group: str | None) -> int:
        assert self._world is not None
        task: int = library.hvd_mxnet_new(self._world.address, process_set, None if group is None else group.encode())
        return task

    def _push(self, task: int) -> int:
        check_call(library.hvd_mxnet_push(task, self.priority))
        return 0


def _add(task: int, name: str, call: EngineCall, tensor: TensorLocation, splits: Sequence[int]) -> None:
    shape = tensor.shape
    library.hvd_mxnet_add(
        *(task, call.kind, name.encode(), tensor.dtype, _array(shape), len(shape), tensor.input, tensor.output),
        *(call.reduce_op, call.prescale, call.postscale, call.root, _array(splits), len(splits), call.wire_dtype),
    )


def _array(numbers: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(numbers))(*numbers)


def settle() -> None:
    """Wait until MXNet's queue is empty. Errors of operations in it are dropped, because no caller waits for them."""
    try:
        mx.nd.waitall()
    except (RuntimeError, ValueError, NotImplementedError):
        pass


def leave() -> None:
    """Shut down. Run what is queued first, because the other ranks wait for it, unless this rank is failing."""
    threads_at_exit.prepare_threads()
    if default_context.is_initialized and sys.exc_info()[0] is None and not hasattr(sys, "last_value"):
        settle()
    default_context.shutdown()
    settle()


atexit.register(leave)
