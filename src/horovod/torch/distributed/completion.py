# SPDX-License-Identifier: Apache-2.0
"""Threads that watch a group's operations on behalf of the operations' futures.

One thread watches at a time. When an operation ends, this thread runs the future's callbacks, and another one watches,
because a callback may wait for another future (DDP's PowerSGD hook does). Threads start on demand; usually there are
two.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horovod.torch.distributed.work import Work

# Operations usually end in the order in which they began, so the watching thread waits for the oldest this long.
# Then it checks the others, because a receive may wait for something that happens after them.
_TURN_S = 0.005
_END_LIMIT_S = 1.0

_completions: weakref.WeakSet[Completion] = weakref.WeakSet()


class Completion:
    """Completion of the futures of one group."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watch = threading.Lock()
        self._works: list[Work] = []
        self._free_threads = 0  # threads that are watching or waiting to watch
        self._closed = False
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        _completions.add(self)

    def add(self, work: Work) -> None:
        with self._changed:
            self._works.append(work)
            self._changed.notify()
            self._ensure_watcher()

    def close(self) -> None:
        """Let the threads end once all operations have ended. The group's world must be closed, so that they do end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _ensure_watcher(self) -> None:
        if self._free_threads == 0:
            self._free_threads += 1
            thread = threading.Thread(target=self._run, name="horovod futures", daemon=True)
            self._threads.add(thread)
            thread.start()

    def join(self, limit_s: float) -> None:
        """Wait for the threads of a closed group, for at most `limit_s`."""
        deadline = time.monotonic() + limit_s
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while True:
            with self._watch:
                work = self._next_done()
            if work is None:
                return
            with self._changed:
                self._free_threads -= 1
                if self._works:
                    self._ensure_watcher()
            work.fulfil()
            with self._changed:
                self._free_threads += 1

    def _next_done(self) -> Work | None:
        """Return the next operation that ends; None if the group is closed and no operation is left."""
        while True:
            with self._changed:
                while not self._works:
                    if self._closed:
                        return None
                    self._changed.wait()
                works = list(self._works)
            for index, work in enumerate(works):
                if work.advance(0.0 if index else _TURN_S):
                    with self._changed:
                        self._works.remove(work)
                    return work


def end_all() -> None:
    """End all threads after all worlds were closed, because no thread may be inside torch when Python ends."""
    for completion in list(_completions):
        completion.close()
    for completion in list(_completions):
        completion.join(_END_LIMIT_S)
