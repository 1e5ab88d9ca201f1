# SPDX-License-Identifier: Apache-2.0
"""Worlds for tests of ranks that wait for each other, and helpers for these tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
from testkit.awaiting import await_that

import horovod.numpy as hvd
from harness.worlds import DYNAMIC, SMALL_CHUNKS, World
from horovod.common.context import default_context

CHECK = "HOROVOD_DEADLOCK_CHECK_TIME_SECONDS"
CHECK_S = 0.2
# No other test leaves threads in these worlds. With four ranks, the first two are found stuck after three quarters of
# the check time. The other ranks must have called by then, also on a busy machine.
DEADLOCK2 = World("deadlock2", "a:2", DYNAMIC | SMALL_CHUNKS | {CHECK: str(CHECK_S)})
DEADLOCK4 = World("deadlock4", "a:2,b:2", DYNAMIC | SMALL_CHUNKS | {CHECK: "4"})


@contextlib.contextmanager
def fresh_world(check_s: float = CHECK_S) -> Iterator[None]:
    """Move the ranks of this world to a new one, in which no rank has called the engine yet.

    They must leave in step.
    """
    hvd.shutdown()
    before = os.environ[CHECK]
    os.environ[CHECK] = str(check_s)
    try:
        hvd.init()
    finally:
        os.environ[CHECK] = before
    yield
    hvd.allreduce(np.ones(1), name="all are here")  # ensures that no rank is still in an operation
    hvd.shutdown()
    hvd.init()


@contextlib.contextmanager
def stderr_kept() -> Iterator[Callable[[], str]]:
    """Capture what this process, including the engine, writes to stderr; write it to stderr at the end."""
    with tempfile.TemporaryFile() as kept:
        before = os.dup(2)
        os.dup2(kept.fileno(), 2)

        def text() -> str:
            return os.pread(kept.fileno(), 1 << 20, 0).decode()

        try:
            yield text
        finally:
            os.dup2(before, 2)
            os.close(before)
            os.write(2, text().encode())


@contextlib.contextmanager
def sigint_after_a_moment() -> Iterator[list[float]]:
    """Send SIGINT to this process, like Ctrl-C; yield a list that then contains the time.

    The signal is sent once an operation of this rank has been in progress for 0.5 s. A signal before the call would
    keep this rank from starting the operation, in which the other ranks take part.
    """
    sent: list[float] = []
    is_over = threading.Event()

    def send() -> None:
        while not json.loads(default_context.world.describe())["operations_under_way"]:
            if is_over.wait(0.01):
                return
        if is_over.wait(0.5):
            return
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    sender = threading.Thread(target=send)
    try:
        sender.start()
        yield sent
    finally:
        is_over.set()
        sender.join()
        signal.signal(signal.SIGINT, previous)


def await_text(text: Callable[[], str], words: str, limit_s: float = 10) -> None:
    await_that(lambda: words in text(), limit_s, lambda: f"written: {words!r}\n{text()}")
