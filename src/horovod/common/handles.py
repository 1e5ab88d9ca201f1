# SPDX-License-Identifier: Apache-2.0
"""Operations in flight: the memory that they keep alive, how they end, and the integer handles that users get."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from horovod._engine import EngineError, PlainHandles, moved_text
from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError

if TYPE_CHECKING:
    from horovod._engine import World
    from horovod.common.calls import TakesCalls

_INVALID, _MISMATCH, _NOT_IMPLEMENTED = 2, 3, 5


def translate(error: EngineError, operation: str | None = None) -> Exception:
    """Return the exception for the user from an engine error. The error's code decides its class."""
    code, text, lost_rank = error.args
    if code == _INVALID:
        return ValueError(text)
    if code == _NOT_IMPLEMENTED:
        return NotImplementedError(text)
    kind = HorovodMismatchError if code == _MISMATCH else HorovodInternalError
    return kind(text, lost_rank=lost_rank if lost_rank >= 0 else None, operation=operation)


class Pending:
    """One submitted operation. It keeps inputs and outputs alive until the engine is done with their memory."""

    __slots__ = ("collect", "handle", "held", "keep", "lies_still", "name", "output", "world")

    def __init__(
        self,
        world: TakesCalls,
        handle: int,
        name: str,
        keep: Any,
        output: Any = None,
        collect: Callable[[Pending], Any] | None = None,
    ) -> None:
        self.world = world
        self.handle = handle
        self.name = name
        self.keep = keep
        self.output = output
        self.collect = collect  # makes the result of an operation whose output the engine allocated
        # This function returns False if the tensors' memory has moved. It is None if the memory cannot move.
        self.lies_still: Callable[[], bool] | None = None
        self.held: Any = None  # object that keeps the inputs' owner from reusing their memory until the engine is done

    def wait(self) -> Any:
        """Wait for the operation and return its result, or raise its error. Call this only once."""
        try:
            if self.collect is None:
                self.world.finish(self.handle)
            else:
                self.world.wait(self.handle)
                self.output = self.collect(self)
                self.world.release(self.handle)
        except EngineError as error:
            self.world.release(self.handle)  # releasing twice is safe
            self.handle = 0
            self.held = None  # the program may keep the exception, which refers to this object
            raise translate(error, self.name) from None
        self.handle = 0
        self.held = None
        if self.lies_still is not None and not self.lies_still():
            raise ValueError(moved_text(self.name))
        return self.output

    def is_complete(self) -> bool:
        """Return True if the engine is done with the operation, so that it no longer uses the tensors' memory."""
        try:
            return self.world.poll(self.handle)
        except ValueError:  # another thread has collected the result
            return True


class Batch:
    """Operations that were submitted together, and that the caller waits for together."""

    __slots__ = ("handles", "keep", "world")

    def __init__(self, world: World, keep: Any) -> None:
        self.world = world
        self.keep = keep
        self.handles: list[int] = []

    def wait(self) -> None:
        """Wait until all operations are done, then raise the first failure. Call this only once."""
        try:
            self.world.finish_all(self.handles)
        except EngineError as error:
            self.handles = []
            raise translate(error) from None
        self.handles = []


class HandleTable:
    """Asynchronous operations of one context, by the integers that users get.

    `plain` is a native table. It keeps the operations that native calls start, and it numbers all handles from 1.
    """

    def __init__(self) -> None:
        self.plain = PlainHandles()
        self._synchronize_plain = self.plain.synchronize
        self._pending: dict[int, Pending] = {}
        self._holding: deque[int] = deque()  # keys of operations in `_pending` that hold memory of another owner
        self._interrupted: list[Batch] = []

    def add(self, pending: Pending) -> int:
        handle = self.plain.next()
        self._insert(handle, pending)
        return handle

    def poll(self, handle: int) -> bool:
        """Return True if an asynchronous operation has completed, so that synchronize() would return at once.

        Args:
            handle: What the asynchronous function returned.

        Returns:
            True if the operation has completed or failed.

        Raises:
            ValueError: The handle is unknown, or synchronize() has returned its result already.

        Example:
            >>> handle = hvd.allreduce_async(np.zeros(2) + hvd.rank())
            >>> while not hvd.poll(handle): time.sleep(0.001)  # or other work
        """
        done = self.plain.poll(handle)
        if done is not NotImplemented:
            return bool(done)
        pending = self._pending.get(handle)
        if pending is None:
            raise ValueError(f"Handle {handle} was not created or has been cleared")
        if not pending.world.poll(pending.handle):
            return False
        pending.held = None
        return True

    def synchronize(self, handle: int) -> Any:
        """Wait for an asynchronous operation and return its result.

        Args:
            handle: What the asynchronous function returned.

        Returns:
            The result of the operation. None if the result was returned before, or the handle is unknown.

        Raises:
            HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
            HorovodInternalError: A rank failed or left the job.

        Example:
            >>> handle = hvd.allreduce_async(np.zeros(2) + hvd.rank())
            >>> hvd.synchronize(handle).tolist()  # on 2 ranks: [0.5, 0.5]
        """
        result = self._synchronize_plain(handle)
        if result is not NotImplemented:
            return result
        pending = self._pending.pop(handle, None)
        try:
            return None if pending is None else pending.wait()
        except BaseException:
            if pending is not None:
                self._keep_if_unfinished(handle, pending)
            raise

    def finish(self, pending: Pending) -> Any:
        """Wait for an operation that has no handle, and return its result."""
        try:
            return pending.wait()
        except BaseException:
            self._keep_if_unfinished(-pending.handle, pending)
            raise

    def finish_batch(self, batch: Batch) -> None:
        """Wait for operations that were submitted together."""
        try:
            batch.wait()
        except BaseException:
            self.abandon(batch)
            raise

    def abandon(self, batch: Batch) -> None:
        """Keep the buffers of operations that no caller will wait for, because the engine may still write to them."""
        if batch.handles:
            self._interrupted.append(batch)

    def _keep_if_unfinished(self, key: int, pending: Pending) -> None:
        # A signal (Ctrl-C) broke the wait. The engine continues and writes to the buffers, so they must stay alive.
        if pending.handle:
            self._insert(key, pending)

    def _insert(self, key: int, pending: Pending) -> None:
        self._pending[key] = pending
        if pending.held is not None:
            self.release_held()
            self._holding.append(key)

    def release_held(self) -> None:
        """Release the memory of completed operations that no caller has waited for yet.

        Look at the oldest operation first and stop at one that is still in flight, so that the cost does not grow with
        the number of operations. Several threads may call this at once.
        """
        while self._holding:
            try:
                key = self._holding.popleft()
            except IndexError:
                return
            pending = self._pending.get(key)
            if pending is not None and not pending.is_complete():
                self._holding.appendleft(key)
                return
            if pending is not None:
                pending.held = None

    def clear(self) -> None:
        """Forget all operations and number from 1 again. Call this only after the engine has stopped."""
        self.plain.clear()
        self._pending.clear()
        self._holding.clear()
        self._interrupted.clear()
