# SPDX-License-Identifier: Apache-2.0
"""World of one process group. Operations are matched by their order, as torch.distributed requires.

Every group has its own world, because torch creates a subgroup on its members only, while all ranks of a larger world
would have to agree on a new process set.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist

from horovod._engine import EngineCall, EngineError, TensorLocation, World
from horovod.common import leaving, log, stacks, threads_at_exit, timeline
from horovod.common import settings as settings_module
from horovod.common.calls import BARRIER, Call
from horovod.common.context import default_context
from horovod.common.dtypes import UINT8
from horovod.common.joining import through_store
from horovod.common.settings import Settings
from horovod.common.settings_table import Value
from horovod.torch.distributed.buffers import Buffer
from horovod.torch.distributed.completion import end_all
from horovod.torch.distributed.errors import ProcessGroupError, from_engine
from horovod.torch.distributed.flight import Flight
from horovod.torch.distributed.places import HOST, Place

_EVERYBODY = 0  # the process set that contains all ranks of the world
_BARRIER = Call(BARRIER)
_LONGEST_S = 1e9  # 31 years: the longest time that a setting accepts


@dataclass(frozen=True)
class Request:
    """Options of one operation of torch, which the engine runs as one or several Calls."""

    operation: str  # name for error messages
    timeout_s: float
    will_wait: bool = False  # True if the calling thread waits next and drives the work, so that none is woken
    place: Place = HOST


@dataclass(eq=False)
class Channel:
    """One connected world. `global_ranks` is empty for the default group, whose ranks are the global ones."""

    world: World
    rank: int
    size: int
    label: str
    global_ranks: Sequence[int] = ()
    failure: str | None = None
    is_closed: bool = False  # closed by shutdown, not by a failure
    may_be_prompt: bool = False  # True if operations on GPUs that NCCL supports are launched without negotiation
    _first_on_gpu: int | None = None  # handle of the first operation on a GPU, while NCCL's support is unknown
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _forgotten: list[Flight] = field(default_factory=list)
    _closing: threading.Lock = field(default_factory=threading.Lock)

    def submit(
        self,
        request: Request,
        call: Call,
        source: Buffer,
        target: int = 0,
        shape: tuple[int, ...] | None = None,
        received: Sequence[int] = (),
    ) -> int:
        """Start one collective. It is named by its number, so that ranks with different calls find out at once.

        `received` lists the rows that each rank sends to this one; without negotiation the engine cannot find this out.
        """
        if self._forgotten:
            self._sweep()
        address, count, dtype = source
        shape = (count,) if shape is None else shape
        stream = self.prompt_stream(request, call, dtype)
        splits = [*(call.splits or ()), *(received if stream else ())]
        name = f"operation {next(self._numbers)}"
        try:
            tensor = _location(request, dtype, shape, address, target)
            handle = self.world.submit(_EVERYBODY, name, _engine_call(request, call, stream), tensor, splits)
        except EngineError as error:
            raise self.error(request, error) from None
        return self._started(request, handle, stream)

    def submit_group(
        self,
        request: Request,
        call: Call,
        sources: Sequence[Buffer],
        targets: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
    ) -> int:
        """Start several collectives of one kind as one unit."""
        if self._forgotten:
            self._sweep()
        name = f"operation {next(self._numbers)}"
        names = [f"{name}, tensor {index} of {len(sources)}" for index in range(1, len(sources) + 1)]
        stream = min(self.prompt_stream(request, call, dtype) for dtype in {source.dtype for source in sources})
        tensors = [
            _location(request, source.dtype, shape, source.address, target)
            for source, shape, target in zip(sources, shapes, targets, strict=True)
        ]
        try:
            handle = self.world.submit_group(_EVERYBODY, name, names, _engine_call(request, call, stream), tensors)
        except EngineError as error:
            raise self.error(request, error) from None
        return self._started(request, handle, stream)

    def prompt_stream(self, request: Request, call: Call, dtype: int = UINT8) -> int:
        """Return the engine's stream for launching an operation without negotiation; 0 if it has to be negotiated.

        All ranks must return equal answers, so the answer depends on the order of calls alone. Operations after the
        group's first one on a GPU wait here until the first one is launched; with torch's own NCCL backend the first
        one blocks.
        """
        if not self.may_be_prompt or request.place.device < 0:
            return 0
        where = (request.place.device, call.kind, call.op, dtype)
        try:
            stream = self.world.prompt_stream(*where)
            if stream < 0 and self._first_on_gpu is not None:
                self._await_first(request)
                stream = self.world.prompt_stream(*where)
        except EngineError as error:
            raise self.error(request, error) from None
        return max(0, stream)

    def _await_first(self, request: Request) -> None:
        first, self._first_on_gpu = self._first_on_gpu, None
        try:
            if first is None or self.world.wait(first, request.timeout_s):
                return
        except EngineError:  # its own caller gets the error, or has already released the handle
            return
        why = f"{request.operation} waited {request.timeout_s:g} s, the time limit of the group, for the one before it"
        self.fail(why)
        raise ProcessGroupError(why + self.where(), operation=request.operation)

    def _started(self, request: Request, handle: int, stream: int) -> int:
        if stream:
            request.place.launches_on(stream)
        elif self.may_be_prompt and request.place.device >= 0:
            self._first_on_gpu = handle
        return handle

    def barrier(self, request: Request) -> int:
        return self.submit(request, _BARRIER, Buffer(0, 0, UINT8), shape=())

    def transfer(self, request: Request, peer: int, tag: int, buffer: Buffer, sends: bool) -> int:
        if self._forgotten:
            self._sweep()
        start = self.world.send if sends else self.world.recv
        try:
            return start(peer, tag, buffer.address, buffer.bytes, request.place.device, request.place.stream)
        except EngineError as error:
            raise self.error(request, error) from None

    def keep_until_done(self, flight: Flight) -> None:
        """Take over an operation that its caller has started and then dropped."""
        self._forgotten.append(flight)

    def _sweep(self) -> None:
        """Finish dropped operations that have ended. Threads may run this concurrently: each pops what it checks."""
        left: list[Flight] = []
        try:
            while self._forgotten:
                left.append(self._forgotten.pop())
                if left[-1].land_alone():
                    left.pop()
        except IndexError:
            pass
        finally:
            self._forgotten.extend(left)

    def error(self, request: Request, error: EngineError) -> Exception:
        if self.failure is not None:
            return ProcessGroupError(f"{request.operation}: {self.failure}{self.where()}", operation=request.operation)
        return from_engine(error, request.operation, self.where())

    def where(self) -> str:
        if not self.global_ranks:
            return f" [{self.label}]"
        return f" [{self.label}; its ranks 0 to {self.size - 1} are the global ranks {list(self.global_ranks)}]"

    def fail(self, why: str) -> None:
        """End the world for a reason found in this process: all pending operations fail, here and on other ranks."""
        with self._closing:
            self.failure = self.failure or why
        self.world.close(at_once=True)

    def fail_as_rank(self, what: str) -> bool:
        """End the world because of a failure of this rank, which `what` describes; see leaving.Member."""
        return self.world.fail(f"rank {self.rank} {what}")

    def close(self) -> None:
        """End the world after the operations launched on GPUs are done, because other ranks may reach them late."""
        with self._closing:
            self.failure = self.failure or "the process group has been destroyed"
            self.is_closed = True
        self.world.close()

    def __del__(self) -> None:
        self.world.close()


def _engine_call(request: Request, call: Call, stream: int) -> EngineCall:
    """Return the engine's form of a call; it is launched without negotiation if there is a stream for that."""
    return EngineCall(
        call.kind,
        call.op,
        call.prescale,
        call.postscale,
        root=call.root,
        will_wait=request.will_wait,
        prompt=stream > 0,
    )


def _location(request: Request, dtype: int, shape: tuple[int, ...], address: int, target: int) -> TensorLocation:
    """Return a tensor's location on the GPU and stream of a request."""
    place = request.place
    return TensorLocation(dtype, shape, address, target, device=place.device, stream=place.stream)


class _Channels:
    """All channels of this process, which end together; implements leaving.Member."""

    def __init__(self) -> None:
        self.all: weakref.WeakSet[Channel] = weakref.WeakSet()

    def fail(self, what: str) -> bool | None:
        answers = [channel.fail_as_rank(what) for channel in list(self.all) if not channel.is_closed]
        # If the world of any group had already ended, this rank is not the first to fail.
        return all(answers) if answers else None


_channels = _Channels()


def open_channel(
    store: through_store.Store,
    store_host: str | None,
    rank: int,
    size: int,
    timeout_s: float,
    label: str,
    global_ranks: Sequence[int],
) -> Channel:
    """Connect to the other members of a group."""
    stacks.offer()
    settings = _settings(timeout_s)
    if not global_ranks and not default_context.is_initialized:
        log.begin(settings, rank)
    place = through_store.place_of(rank, size)
    started = through_store.start(store, settings, place, store_host, timeout_s, label)
    if not global_ranks and not default_context.is_initialized:
        wish = timeline.first_wish(settings)
        timeline.begin(started.world, settings, rank, wish)  # only for the default group, because there is one file
    channel = Channel(started.world, rank, size, label, tuple(global_ranks))
    channel.may_be_prompt = size > 1 and _skips_agreement(settings)
    _channels.all.add(channel)
    if size > 1:
        leaving.watch(_channels)
    return channel


def seconds(timeout: timedelta) -> float:
    """Return a timeout of torch in seconds, limited to what clocks and locks can count."""
    return min(timeout.total_seconds(), _LONGEST_S)


def _settings(timeout_s: float) -> Settings:
    """Return the user's settings, with defaults that suit torch.distributed."""
    given = settings_module.load(os.environ)
    suited: dict[str, Value] = {
        # DDP and FSDP make large buckets themselves; gathering small ones in cycles would only delay them.
        "HOROVOD_CYCLE_TIME": 0.0,
        # The leader knows which ranks are missing, so its timeout must expire before the callers' do. It counts whole
        # seconds.
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": max(1, round(timeout_s)),
    }
    # Launch in the order of calls, because NCCL hangs if ranks launch operations of two groups in different orders.
    return Settings({**suited, **given.explicit}, engine_only={"launches_by_calls": 1})


def _skips_agreement(settings: Settings) -> bool:
    """Return True if ranks trust each other to make equal calls, as with torch's NCCL; not with DETAIL debugging."""
    asked = settings.text("HOROVOD_GPU_TRANSPORT") or "auto"
    torch_debug: Any = dist  # its type stubs lack these attributes
    return asked.lower() in ("auto", "nccl") and torch_debug.get_debug_level() != torch_debug.DebugLevel.DETAIL


class _NoWorld:
    """Substitute for a world at the end of the process, when torch's globals still hold the group."""

    def close(self, at_once: bool = False) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise EngineError(4, "this process is ending", -1)


@atexit.register
def _close_all() -> None:
    threads_at_exit.prepare_threads()
    for channel in list(_channels.all):
        if getattr(sys, "last_value", None) is None:
            channel.close()
        else:  # uncaught exception: neither other ranks nor this one must wait for what was launched
            channel.fail("this process has ended with an exception")
        channel.world = cast(World, _NoWorld())
    end_all()
