# SPDX-License-Identifier: Apache-2.0
"""Bare C prototypes of benchmarks/floor in one rank: the minimum cost of a collective on this machine.

Values of `door`: "" for ordinary buffers, "shared" for tensors in shared memory, "socket" for a bare full-duplex
exchange.
"""

from __future__ import annotations

import ctypes
import os
import socket
import time
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

import numpy as np

from benchkit.backend import Operation, UnsupportedError
from benchkit.problem import OPS, Array, Problem

_SHARED_ALLREDUCE, _SOCKET_EXCHANGE = len(OPS), len(OPS) + 1  # enum Kind, after the collectives
_CONNECT_LIMIT_S = 30


def join_world(rank: int, ranks: int) -> Floor:
    return Floor(rank, ranks)


class Floor:
    """Implementation of benchkit.backend.Backend."""

    library = "bare C prototypes"

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self._calls = _load(os.environ["BENCH_FLOOR"])
        crowded = ranks > len(os.sched_getaffinity(0)) and "BENCH_PINNED" not in os.environ
        path, tensor_bytes = os.environ["BENCH_FLOOR_MEMORY"].encode(), int(os.environ["BENCH_FLOOR_TENSOR"])
        self._floor = self._calls.FloorJoin(path, rank, ranks, crowded, tensor_bytes)
        if not self._floor:
            raise OSError("cannot map the floor's shared memory")
        self._socket: socket.socket | None = None

    def prepare(self, problem: Problem, door: str) -> Operation:
        if problem.dtype != "float32" or problem.average:
            raise UnsupportedError("the floor knows sums of float32 only")
        if door == "socket":
            return self._exchange(problem)
        if door == "shared":
            return self._in_shared_memory(problem)
        # For several tensors, the minimum is one allreduce of all their bytes.
        array = np.concatenate([problem.input(self.rank)] * problem.tensors)
        in_place = problem.op in ("allreduce", "broadcast")
        output = array if in_place else problem.output()
        values, array[:] = array.copy(), 0
        kind, count = OPS.index(problem.op), problem.count * problem.tensors
        self._calls.FloorTune(self._floor, kind, _address(array), _address(output), count)
        array[:] = values
        return self._operation(kind, array, output, count, problem.tensors)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _in_shared_memory(self, problem: Problem) -> Operation:
        if problem.op != "allreduce":
            raise UnsupportedError(f"in shared memory: only allreduce, not {problem.op}")
        self._calls.FloorTensor(self._floor, 0)
        memory = self._calls.FloorTensor(self._floor, problem.actual_bytes)
        if not memory:
            raise UnsupportedError(f"no room for {problem.actual_bytes} bytes in the floor's shared memory")
        array = np.ctypeslib.as_array((ctypes.c_float * problem.count).from_address(memory))
        array[:] = problem.input(self.rank)
        return self._operation(_SHARED_ALLREDUCE, array, array, problem.count)

    def _exchange(self, problem: Problem) -> Operation:
        """Exchange the bytes that an allreduce of two ranks sends each way: half of the input, then half of the sum."""
        if self.ranks != 2 or problem.op != "allreduce":
            raise UnsupportedError("the bare exchange stands for an allreduce of two ranks")
        if self._socket is None:
            self._socket = _connect(self.rank)
            self._calls.FloorUseSocket(self._floor, self._socket.fileno())
        array, output = problem.input(self.rank), problem.output()
        operation = self._operation(_SOCKET_EXCHANGE, array, output, problem.count)
        # The exchange does not compute the sum, but transfers all its bytes.
        operation.results = lambda: [array + output]
        return operation

    def _operation(self, kind: int, array: Array, output: Array, count: int, parts: int = 1) -> Operation:
        calls, floor, source, target = self._calls, self._floor, _address(array), _address(output)

        def timed(runs: int) -> list[int]:
            times = (c_uint64 * runs)()
            calls.FloorTime(floor, kind, source, target, count, runs, times)
            return list(times)

        def run() -> None:
            calls.FloorRun(floor, kind, source, target, count)

        return Operation(run, [array], lambda: list(np.split(output, parts)), timed)


def _load(path: str) -> ctypes.CDLL:
    calls = ctypes.CDLL(path)
    calls.FloorJoin.restype = calls.FloorTensor.restype = c_void_p
    calls.FloorJoin.argtypes = [c_char_p, c_int, c_int, c_int, c_size_t]
    calls.FloorTensor.argtypes = [c_void_p, c_size_t]
    calls.FloorUseSocket.argtypes = [c_void_p, c_int]
    run: list[Any] = [c_void_p, c_int, c_void_p, c_void_p, c_size_t]
    calls.FloorRun.argtypes = calls.FloorTune.argtypes = run
    calls.FloorTime.argtypes = [*run, c_int, POINTER(c_uint64)]
    return calls


def _connect(rank: int) -> socket.socket:
    """Return the connection between the two ranks; rank 0 listens."""
    place = (os.environ["BENCH_ADDRESS"], int(os.environ["BENCH_PORT"]))
    if rank == 0:
        with socket.create_server(place) as listener:
            listener.settimeout(_CONNECT_LIMIT_S)
            connection = listener.accept()[0]
    else:
        connection = _call(place)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _call(place: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + _CONNECT_LIMIT_S
    while True:
        try:
            return socket.create_connection(place, timeout=5)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _address(array: Array) -> int:
    return int(array.ctypes.data)
