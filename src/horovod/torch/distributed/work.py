# SPDX-License-Identifier: Apache-2.0
"""Operations in flight as torch's Work objects, which a caller waits for or gets a future of."""

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

# torch below 2.9 drops the Python half of a Work that passes through C++, as in DDP, and then waits indefinitely.
WORK_SURVIVES_CPP = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 9)
_NO_LIMIT_GIVEN = timedelta(0)
# At the timeout the leader reports which ranks are missing; other ranks wait a little longer to receive this report.
_VERDICT_SLACK_S = 2.0


class Work(_Work):  # type: ignore[misc]
    """One operation and its outcome.

    A waiting caller completes the operation and meanwhile drives the engine. If the caller has asked for a future, the
    group's completion threads complete the operation. On a GPU an operation is complete for the host when it is
    launched.
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
        """Block until the operation is done.

        If the caller's `timeout` passes, raise an error. If the group's time limit passes, end the group.
        """
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
        """Return True if nothing is left to do, on the GPU either."""
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
            # An error that a callback raises reaches callers that wait in C++, too; one from set_exception() does not.
            self._trigger = self._place.future()
            self._future = self._trigger.then(self._outcome)
            done = self._done
        if done:
            self.fulfil()
        else:
            self._completion.add(self)
        return self._future

    def then(self, finish: Callable[[], None], results: list[Tensor]) -> Work:
        """Append a last step to this operation. Call it before any thread waits for the operation."""
        self._flight.then(finish, results)
        self._results = results
        return self

    def __del__(self) -> None:
        """Leave an unfinished operation to the channel, because the engine still works on the tensors."""
        if not self._done:
            self._channel.keep_until_done(self._flight)

    # What the completion threads call

    def advance(self, limit_s: float, followed: bool = False) -> bool:
        """Wait for at most `limit_s`. Return True if the operation has ended, successfully or not.

        `followed` means that the caller makes its stream wait for the operation next.
        """
        if self._done:
            return True
        if not self._lock.acquire(timeout=limit_s):
            return self._done  # another thread waits, and will complete the operation
        try:
            if not self._done and (self._flight.wait(limit_s) or self._give_up_if_late()):
                self._end(followed)
            return self._done
        finally:
            self._lock.release()

    def fulfil(self) -> None:
        """Set the outcome of the future, which runs its callbacks and so may take long."""
        self._trigger.set_result(None)

    def _outcome(self, _: Any) -> list[Tensor]:
        if self._error is not None:
            raise self._error
        self._place.complete_here()
        return self._results

    def _give_up_if_late(self) -> bool:
        if time.monotonic() < self._deadline:
            return False
        # Close the world, because the engine may still write to the tensors, and only closing the world stops that.
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
        if not followed:  # else the caller releases it after its stream has been ordered
            self._flight.release(followed=False)
        self._done = True


def as_cpp_work(work: Any) -> Any:
    """Return the operation as an object of torch's C++ class; its errors are RuntimeErrors with our text."""
    functions: Any = _distributed_c10d
    return functions._create_work_from_future(work.get_future())


class WorkList(_Work):  # type: ignore[misc]
    """Several operations that one call waits for."""

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
