# SPDX-License-Identifier: Apache-2.0
"""MPI as a data plane: one thread makes all MPI calls, in the order of the engine's jobs.

Every collective is non-blocking, because ranks may see batches of different process sets in different orders. Only the
creation of a communicator blocks until its members call it. All ranks create communicators in the order on which the
engine's ranks have agreed.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from horovod._engine import World
from horovod.common import dtypes, mpi_library
from horovod.common.calls import (
    ADD_PROCESS_SET,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    REDUCESCATTER,
    REMOVE_PROCESS_SET,
)

_IDLE_S = 1.0  # seconds to wait for a job when none is in flight; the engine wakes the thread for a new job
_EAGER_LOOKS = 50  # tests of operations in flight without a pause, before the thread pauses between tests
_PAUSE_S = 50e-6
_FAREWELL_S = 1.0  # limit of the last barrier, in which this rank sends what other ranks still need
_TAGS = 32768  # number of tags that every MPI library supports

_PATIENCE_S = 30.0  # limit of a caller's wait; the thread handles calls at least once in _IDLE_S
_T = TypeVar("_T")

_NAMES = {
    ALLREDUCE: "allreduce",
    ALLGATHER: "allgather",
    BROADCAST: "broadcast",
    ALLTOALL: "alltoall",
    REDUCESCATTER: "reducescatter",
    ADD_PROCESS_SET: "making a communicator",
    REMOVE_PROCESS_SET: "freeing a communicator",
}
_DTYPES = {
    "uint8": "UINT8_T",
    "int8": "INT8_T",
    "uint16": "UINT16_T",
    "int16": "INT16_T",
    "uint32": "UINT32_T",
    "int32": "INT32_T",
    "uint64": "UINT64_T",
    "int64": "INT64_T",
    "float32": "FLOAT",
    "float64": "DOUBLE",
}
_REDUCTIONS = {1: "SUM", 3: "MIN", 4: "MAX", 5: "PROD"}


class Job(NamedTuple):
    """Collective for MPI; hvd_job in hvd/engine.h describes the fields."""

    id: int
    kind: int
    dtype: int
    reduce_op: int
    root: int
    group: int
    members: list[int]
    in_place: bool
    input: int
    input_bytes: int
    output: int
    output_bytes: int
    sent: list[int]
    received: list[int]


class Plane:
    """Thread that moves tensors by MPI, from when the ranks are connected until this rank leaves."""

    def __init__(self, world: World, base: Any) -> None:
        """Start the thread.

        Args:
            world: The engine's world.
            base: A communicator of all ranks of the world, in rank order.
        """
        self._world, self._base = world, base
        self._mpi = mpi_library.load()
        self._groups: dict[int, Any] = {}
        self._flights: list[tuple[Job, Any]] = []
        self._leaving = False
        self._asked: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._thread = threading.Thread(target=self._run, name="hvd-mpi", daemon=True)
        self._thread.start()

    @property
    def takes_threads(self) -> bool:
        """True if the program's own threads may call MPI too."""
        return bool(self._mpi.Query_thread() == self._mpi.THREAD_MULTIPLE)

    def call(self, function: Callable[[], _T]) -> _T:
        """Run a short, local function that calls MPI: in this thread if MPI allows that, else in the plane's thread."""
        if self.takes_threads:
            return function()
        answer: Future[Any] = Future()
        self._asked.append((function, answer))
        result: _T = answer.result(_PATIENCE_S)
        return result

    def leave(self) -> None:
        """Note that the world is closed on purpose. Call this before the world is closed."""
        self._leaving = True

    def end(self) -> None:
        """Wait a few seconds for the thread to end. Call this after the world is closed."""
        self._thread.join(2 * _FAREWELL_S)
        if self._thread.is_alive():
            mpi_library.give_up()

    def _run(self) -> None:
        try:
            self._groups[0] = self._base.Dup()
            self._work()
            if self._leaving and not self._flights:
                self._say_farewell()
                return
        except Exception as error:  # this thread has no caller to raise to, and the engine must not wait for its jobs
            self._refuse_all(f"MPI failed: {error}")
        mpi_library.give_up()

    def _work(self) -> None:
        looks = 0
        while True:
            eager = self._flights and looks < _EAGER_LOOKS
            job = self._world.next_job(0.0 if eager else _PAUSE_S if self._flights else _IDLE_S)
            self._answer()
            if job is False:
                return
            if job is not None:
                looks = 0
                self._begin(Job(*job))
            looks = 0 if self._look() else looks + 1
            if eager:
                os.sched_yield()

    def _answer(self) -> None:
        while self._asked:
            function, answer = self._asked.popleft()
            try:
                answer.set_result(function())
            except Exception as error:  # raised to the caller, which waits for the answer
                answer.set_exception(error)

    def _begin(self, job: Job) -> None:
        try:
            if job.kind == ADD_PROCESS_SET:
                whole = self._groups[0]
                self._groups[job.group] = whole.Create_group(whole.Get_group().Incl(job.members), job.group % _TAGS)
            elif job.kind == REMOVE_PROCESS_SET:
                self._groups.pop(job.group).Free()
            else:
                self._flights.append((job, self._start(job, self._groups[job.group])))
                return
        except (self._mpi.Exception, OverflowError, ValueError) as error:
            self._world.finish_job(job.id, f"MPI could not run {_NAMES[job.kind]}: {error}")
            return
        self._world.finish_job(job.id)

    def _start(self, job: Job, comm: Any) -> Any:
        mpi = self._mpi
        memory = mpi.buffer.fromaddress
        source, target = memory(job.input, job.input_bytes), memory(job.output, job.output_bytes)
        if job.kind == BROADCAST:
            return comm.Ibcast([target, job.output_bytes, mpi.BYTE], job.root)
        if job.kind == ALLGATHER:
            return comm.Iallgatherv([source, job.sent[0], mpi.BYTE], [target, (job.received, None), mpi.BYTE])
        if job.kind == ALLTOALL:
            return comm.Ialltoallv([source, (job.sent, None), mpi.BYTE], [target, (job.received, None), mpi.BYTE])
        name = dtypes.NAME_BY_ID[job.dtype]
        kind, op = getattr(mpi, _DTYPES[name]), getattr(mpi, _REDUCTIONS[job.reduce_op])
        count = job.output_bytes // kind.Get_size()
        if job.kind == ALLREDUCE:
            return comm.Iallreduce(mpi.IN_PLACE, [target, count, kind], op)
        sent = [source, sum(job.received), kind]
        return comm.Ireduce_scatter(sent, [target, count, kind], job.received, op)

    def _look(self) -> bool:
        """Test the operations in flight. Return True if any of them has finished."""
        done: list[tuple[Job, Any]] = []
        left: list[tuple[Job, Any]] = []
        for job, request in self._flights:
            try:
                (done if request.Test() else left).append((job, request))
            except self._mpi.Exception as error:
                self._world.finish_job(job.id, f"MPI could not finish {_NAMES[job.kind]}: {error}")
        self._flights = left
        for job, _ in done:
            self._world.finish_job(job.id)
        return bool(done)

    def _say_farewell(self) -> None:
        """Meet all ranks in a barrier, during which MPI sends what they still need, then free the communicators.

        Do not wait longer than _FAREWELL_S for ranks that do not come.
        """
        until = time.monotonic() + _FAREWELL_S
        meeting = self._groups[0].Ibarrier()
        while not meeting.Test():
            if time.monotonic() > until:
                _kept.append((self._groups[0], meeting))
                return
            time.sleep(_PAUSE_S)
        for comm in self._groups.values():
            comm.Free()

    def _refuse_all(self, why: str) -> None:
        while (job := self._world.next_job(_IDLE_S)) is not False:
            if job is not None:
                self._world.finish_job(Job(*job).id, why)


_kept: list[Any] = []  # communicators and barriers that other ranks may still use
