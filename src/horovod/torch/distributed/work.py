# SPDX-License-Identifier: Apache-2.0
"""Operations under way, as torch knows them: something to wait for, or a future for those who want to be called."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from horovod._engine import EngineError
from horovod.torch.distributed.channel import Channel, Request, seconds
from horovod.torch.distributed.errors import ProcessGroupError
from horovod.torch.distributed.flight import Finish, Flight

if TYPE_CHECKING:
    from horovod.torch.distributed.completion import Completion

Tensor = torch.Tensor
_Work: Any = dist.Work  # its type stubs differ from one version of torch to the next

# Older versions forget the Python half of a Work that passes through C++ (DDP does that), and then wait for ever.
WORK_SURVIVES_CPP = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 9)
_NO_LIMIT_GIVEN = timedelta(0)
# The rank that knows who is missing gives its verdict at the limit; the others wait a little longer for it.
_VERDICT_SLACK_S = 2.0


class Work(_Work):  # type: ignore[misc]
    """One operation: a flight through the engine, and its outcome.

    Whoever needs the result sees to its end: the waiting caller, who then drives the engine himself, or the group's
    completion threads if somebody asked for a future. On a GPU the host has the result when its work is launched.
    """

    def __init__(
        self,
        channel: Channel,
        completion: Completion,
        request: Request,
        handles: Sequence[int],
        results: list[Tensor],
        keep: object = None,
        finish: Finish | None = None,
        source: int = -1,
    ) -> None:
        super().__init__()
        self._done = False
        self._channel = channel
        self._completion = completion
        self._request = request
        self._place = request.place
        watched = "" if request.will_wait else request.operation
        self._flight = Flight(channel, handles, request.place, keep, finish, watched)
        self._results = results
        self._source = source
        self._deadline = time.monotonic() + request.timeout_s + _VERDICT_SLACK_S
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._trigger: Any = None
        self._future: Any = None

    # What torch calls

    def wait(self, timeout: timedelta = _NO_LIMIT_GIVEN) -> bool:
        """Block until done. A limit of the caller's own is his affair; the group's limit ends the group."""
        if timeout > _NO_LIMIT_GIVEN and not self.advance(seconds(timeout), followed=True):
            raise ProcessGroupError(f"{self._request.operation} is not done after {timeout.total_seconds():g} s")
        while not self.advance(max(0.0, self._deadline - time.monotonic()), followed=True):
            pass
        try:
            if self._error is None:
                self._place.follow(self._channel.world)
        except EngineError as error:
            raise self._channel.error(self._request, error) from None
        finally:
            with self._lock:
                self._flight.release(followed=True)
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        """Whether nothing is left to do, on the GPU either."""
        return self.advance(0.0) and (self._error is not None or self._place.is_done())

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[Tensor]:
        return self._results

    def source_rank(self) -> int:
        return self._source

    def get_future(self) -> Any:
        with self._lock:
            if self._future is not None:
                return self._future
            # An exception that a callback raises also reaches those who wait in C++; set_exception's does not.
            self._trigger = self._place.future()
            self._future = self._trigger.then(self._outcome)
            done = self._done
        if done:
            self.fulfil()
        else:
            self._completion.add(self)
        return self._future

    def then(self, finish: Callable[[], None], results: list[Tensor]) -> Work:
        """This operation with a last step, before anybody has waited for it."""
        self._flight.then(finish, results)
        self._results = results
        return self

    def __del__(self) -> None:
        """Nobody waits any more, but the engine still works on the tensors."""
        if not self._done:
            self._channel.keep_until_done(self._flight)

    # What the completion threads call

    def advance(self, limit_s: float, followed: bool = False) -> bool:
        """Wait for a while; whether it is done, well or not. `followed`: the caller then follows it on its stream."""
        if self._done:
            return True
        if not self._lock.acquire(timeout=limit_s):
            return self._done  # somebody else waits, and will see to it
        try:
            if not self._done and (self._flight.wait(limit_s) or self._give_up_if_late()):
                self._end(followed)
            return self._done
        finally:
            self._lock.release()

    def fulfil(self) -> None:
        """Give the outcome to the future. Runs the callbacks of whoever holds it, which may take long."""
        self._trigger.set_result(None)

    def _outcome(self, _: Any) -> list[Tensor]:
        if self._error is not None:
            raise self._error
        self._place.complete_here()
        return self._results

    def _give_up_if_late(self) -> bool:
        if time.monotonic() < self._deadline:
            return False
        # The engine may still write to the tensors: only a world that is closed leaves them alone.
        why = f"{self._request.operation} was not done after {self._request.timeout_s:g} s, the time limit of the group"
        self._channel.fail(why)
        self._error = ProcessGroupError(why + self._channel.where(), operation=self._request.operation)
        return True

    def _end(self, followed: bool) -> None:
        if self._flight.error is not None:
            self._error = self._channel.error(self._request, self._flight.error)
        if self._error is None:
            try:
                self._flight.land()
            except EngineError as error:
                self._error = self._channel.error(self._request, error)
            except Exception as error:
                self._error = error
        if not followed:  # else after that
            self._flight.release(followed=False)
        self._done = True


def as_cpp_work(work: Any) -> Any:
    """The same operation as an object of torch's own; its errors are plain RuntimeErrors with our text."""
    functions: Any = _distributed_c10d
    return functions._create_work_from_future(work.get_future())


class WorkList(_Work):  # type: ignore[misc]
    """Several operations that are waited for as one."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        super().__init__()
        self._works = list(works)

    def wait(self, timeout: timedelta = _NO_LIMIT_GIVEN) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def result(self) -> list[Tensor]:
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> Any:
        together = torch.futures.collect_all([work.get_future() for work in self._works])
        return together.then(lambda done: [tensor for future in done.value() for tensor in future.value()])
