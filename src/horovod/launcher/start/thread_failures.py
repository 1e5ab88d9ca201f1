# SPDX-License-Identifier: Apache-2.0
"""Detection of exceptions that end a thread of the process that runs a job, which cannot go on without the thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from horovod.launcher.start.processes import CannotRunError

_OUR_THREADS = "horovod-"


class ThreadFailures:
    """Context that detects failed threads while a job runs.

    `wake` is called when a thread has failed; `failure` then names the thread and the error.

    Args:
        wake: Wakes the job's loop, which calls `check` or looks at `failure`.
        process: Name of this process in errors.
    """

    def __init__(self, wake: Callable[[], None], process: str = "launcher") -> None:
        self._wake = wake
        self._process = process
        self.failure: str | None = None

    def __enter__(self) -> ThreadFailures:
        self._previous = threading.excepthook
        self._hook = self._on_exception  # one bound-method object, by which __exit__ recognises it
        threading.excepthook = self._hook
        return self

    def __exit__(self, *_: object) -> None:
        if threading.excepthook is self._hook:
            threading.excepthook = self._previous

    def check(self) -> None:
        """Raise CannotRunError if a thread has failed."""
        if self.failure is not None:
            raise CannotRunError(self.failure)

    def _on_exception(self, args: threading.ExceptHookArgs) -> None:
        self._previous(args)
        name = args.thread.name if args.thread is not None else ""
        if name.startswith(_OUR_THREADS) and self.failure is None:
            self.failure = (
                f"the {self._process}'s thread {name} failed with {args.exc_type.__name__}: {args.exc_value}. "
                "The job cannot go on without it, so its workers were ended"
            )
            self._wake()
