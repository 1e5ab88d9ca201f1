# SPDX-License-Identifier: Apache-2.0
"""Thread that runs short jobs in order, so that callers need not wait for what the jobs wait for."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Callable

_END_LIMIT_S = 5.0


class Submitter:
    """Queue of jobs with a thread that starts with the first job. Jobs must not raise."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], threading.Event] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, job: Callable[[], None]) -> threading.Event:
        """Run a job after those before it. Return an event that is set when it has run."""
        done = threading.Event()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="horovod-staging", daemon=True)
                self._thread.start()
                atexit.register(self._end)
        self._jobs.put((job, done))
        return done

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            job()
            done.set()

    def _end(self) -> None:
        """End the thread before the interpreter exits, because a thread inside a CUDA call must not outlive CUDA."""
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join(_END_LIMIT_S)
