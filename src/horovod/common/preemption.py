# SPDX-License-Identifier: Apache-2.0
"""SIGTERM in a worker of an elastic job, whose machine is about to be taken away (spot instance, time limit).

The worker asks the driver. The driver makes all workers synchronise at their next commit, and this worker then leaves
with exit code 0. The driver refuses if it is ending the job itself. If it refuses, at a second SIGTERM, and after a
grace period, the worker ends at once, as any process does.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from horovod.common.log import logger
from horovod.common.readiness import is_readable

_STUCK_S = 1.0  # limit for a main thread to handle a signal; it may be busy in native code


class _Watch:
    """Handler of SIGTERM for one `with` block.

    `ask` returns if the worker may stay until its next commit, and raises otherwise.
    """

    def __init__(self, ask: Callable[[], None], grace_s: float, previous: Any) -> None:
        self._ask = ask
        self._grace_s = grace_s
        self._previous = previous
        self._pid = os.getpid()
        self._receiver, self._sender = os.pipe()
        self._is_preempted = False
        self._thread = threading.Thread(target=self._wait, name="horovod-preemption", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if os.getpid() == self._pid:
            os.close(self._sender)  # wakes the thread
            self._thread.join(_STUCK_S)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        # The driver's permission does not cover forked children, such as a data loader's.
        if self._is_preempted or os.getpid() != self._pid:
            self._end()
            return
        self._is_preempted = True
        with suppress(OSError):
            os.write(self._sender, b"\0")
        if callable(self._previous):
            self._previous(number, frame)

    def _end(self) -> None:
        """End the process by SIGTERM, as if it had never been caught. Called on the main thread.

        A user's handler has already been called at the first signal.
        """
        signal.signal(signal.SIGTERM, self._previous if os.getpid() != self._pid else signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _wait(self) -> None:
        try:
            if os.read(self._receiver, 1):
                self._on_preempted()
        finally:
            os.close(self._receiver)

    def _on_preempted(self) -> None:
        deadline = time.monotonic() + self._grace_s
        try:
            self._ask()
        except Exception as error:  # any error: without the driver's permission SIGTERM ends the process
            logger.info("SIGTERM: %s", error)
        else:
            logger.warning("SIGTERM: this worker leaves at the next commit, within %g s", self._grace_s)
            if is_readable(self._receiver, deadline - time.monotonic()):
                return
            logger.warning("SIGTERM: there was no commit within %g s, so this worker ends", self._grace_s)
        os.kill(self._pid, signal.SIGTERM)  # the handler treats this as the second SIGTERM and ends the process
        if not is_readable(self._receiver, _STUCK_S):
            os._exit(128 + signal.SIGTERM)


@contextmanager
def leaves_at_commit(ask: Callable[[], None], grace_s: float) -> Iterator[None]:
    """Delay the end by SIGTERM inside the block until the next commit. The user's own handler is still called.

    Do nothing outside the main thread, where Python allows no handlers, if the user ignores the signal, or if the grace
    period is 0.
    """
    previous = signal.getsignal(signal.SIGTERM)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not grace_s or previous in (signal.SIG_IGN, None):
        yield
        return
    watch = _Watch(ask, grace_s, previous)
    ours = watch.on_signal
    signal.signal(signal.SIGTERM, ours)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) == ours:  # the user may have set another handler since
            signal.signal(signal.SIGTERM, previous)
        watch.close()
