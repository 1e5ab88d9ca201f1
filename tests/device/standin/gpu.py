# SPDX-License-Identifier: Apache-2.0
"""The stand-in for the CUDA driver as ranks use it: memory, streams, and counts of what they have not freed."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import mmap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod._engine import EngineCall, TensorLocation, World
from horovod.common.context import default_context
from horovod.common.dtypes import ID_BY_NAME
from horovod.common.process_sets import ProcessSet, global_process_set

KINDS = ("memory", "mapped", "host", "events", "streams", "modules", "contexts")

_numbers: dict[int, Iterator[int]] = {}  # numbers of the next operations, by process set
_words: list[ctypes.c_uint32] = []  # kept until the process ends, because a stream may read one a little longer


def restart_numbers() -> None:
    """Restart the numbers of operations, because ranks that joined early have started fewer than others."""
    _numbers.clear()


class GpuError(RuntimeError):
    """Error code that the driver has returned to the test itself, not to the engine."""


class Hold:
    """Wait of a stream until `end` is called: work that is put on the stream later waits too.

    With a path, a call of `end` on one rank ends the holds of all ranks that use this file.
    """

    def __init__(self, gpu: Gpu, stream: int, path: str | None = None) -> None:
        self._value = ctypes.c_uint32(0) if path is None else _word_in(path)
        _words.append(self._value)
        address = ctypes.c_uint64(ctypes.addressof(self._value))
        gpu.call("cuStreamWaitValue32_v2", ctypes.c_void_p(stream), address, ctypes.c_uint32(1), 0)

    def end(self) -> None:
        self._value.value = 1


def _word_in(path: str) -> ctypes.c_uint32:
    with open(path, "a+b") as file:
        file.truncate(mmap.PAGESIZE)
        return ctypes.c_uint32.from_buffer(mmap.mmap(file.fileno(), mmap.PAGESIZE))


class Gpu:
    """One device. No context stays current between two calls, so that the engine cannot rely on one."""

    def __init__(self, ordinal: int = 0) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._library.standin_live.restype = ctypes.c_long
        self.ordinal = ordinal
        self._context = ctypes.c_void_p()
        self._check("cuInit", 0)
        self._check("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), ordinal)

    def _check(self, name: str, *arguments: Any) -> None:
        if result := getattr(self._library, name)(*arguments):
            raise GpuError(f"{name}: {result}")

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        self._check("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def call(self, name: str, *arguments: Any) -> None:
        with self.current():
            self._check(name, *arguments)

    def allocate(self, nbytes: int) -> int:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(nbytes, 1)))
        return address.value

    def free(self, address: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def stream(self) -> int:
        stream = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(stream), 0, 0)
        return stream.value or 0

    def destroy(self, stream: int) -> None:
        self.call("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    def synchronize(self, stream: int = 0) -> None:
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def is_idle(self, stream: int) -> bool:
        return bool(self._library.cuStreamQuery(ctypes.c_void_p(stream)) == 0)

    def copy(self, to: int, source: int, nbytes: int, stream: int, delay_s: float = 0.0) -> None:
        """Copy on the stream, `delay_s` after the copy's turn has come."""
        self.call(
            "standin_copy", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(nbytes),
            ctypes.c_long(int(delay_s * 1e6)), ctypes.c_void_p(stream),
        )  # fmt: skip

    def fail(self, rules: str) -> None:
        self._library.standin_fail(rules.encode())

    def live(self) -> dict[str, int]:
        return {kind: self._library.standin_live(kind.encode()) for kind in KINDS}

    def wait_for(self, kind: str, count: int) -> None:
        """Wait until `count` objects are left, because a thread of the engine frees those of a removed process set."""
        until = time.monotonic() + 30
        while self.live()[kind] != count and time.monotonic() < until:
            time.sleep(0.001)
        assert self.live()[kind] == count, (kind, count, self.live())

    def release(self) -> None:
        self._library.cuDevicePrimaryCtxRelease_v2(self.ordinal)


def array_at(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array over memory that another object owns."""
    raw = (ctypes.c_uint8 * (math.prod(shape) * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype=dtype).reshape(shape)


class Tensor:
    """An array in memory of the device that begins `shift` elements after the start of its allocation."""

    def __init__(self, gpu: Gpu, like: NDArray[Any], shift: int = 0) -> None:
        self._gpu = gpu
        self._memory = gpu.allocate(like.nbytes + shift * like.itemsize)
        self.address = self._memory + shift * like.itemsize
        self.shape, self.dtype, self.nbytes = like.shape, like.dtype, like.nbytes
        self.array[...] = like

    @property
    def array(self) -> NDArray[Any]:
        return array_at(self.address, self.shape, self.dtype)

    def free(self) -> None:
        self._gpu.free(self._memory)


@dataclass
class Ask:
    """A collective on one tensor, or on several as one unit."""

    kind: int
    op: int = 1
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = -1
    set: ProcessSet = field(default_factory=lambda: global_process_set)


def world() -> World:
    member = default_context.membership_of(global_process_set)
    return member.world


def start(
    ask: Ask, inputs: Sequence[tuple[int, NDArray[Any]]], outputs: Sequence[int], gpu: Gpu | None, stream: int = 0
) -> int:
    """Start a collective. All ranks must start the same ones in the same order.

    Each input is its address, with an array of the same shape and dtype.
    """
    member = default_context.membership_of(ask.set)
    number = next(_numbers.setdefault(member.id, itertools.count()))
    names = [f"t{number}.{index}" for index in range(len(inputs))]
    device = -1 if gpu is None else gpu.ordinal
    call = EngineCall(ask.kind, ask.op, ask.prescale, ask.postscale, root=ask.root)
    tensors = [
        TensorLocation(ID_BY_NAME[like.dtype.name], like.shape, address, output, device=device, stream=stream)
        for (address, like), output in zip(inputs, outputs, strict=True)
    ]
    if len(inputs) > 1:
        return member.world.submit_group(member.id, f"g{number}", names, call, tensors)
    return member.world.submit(member.id, names[0], call, tensors[0])
