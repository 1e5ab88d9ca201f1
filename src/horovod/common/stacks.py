# SPDX-License-Identifier: Apache-2.0
"""Python stacks of a worker, for `hvd stacks` and for other ranks.

`hvd stacks` sends a real-time signal, at which the process writes the Python stacks of all threads. It writes to a file
in memory without a path, which `hvd stacks` reads through /proc, so no files are left behind. faulthandler's C code
writes, so this also works while the main thread waits inside the engine.

The engine asks for the stack when other ranks wait for this one. No signal is used then, because a signal might disturb
the program and no user is watching.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import sys
import threading

# The signal's number follows this prefix, because it depends on the C library and on the application's own signals.
FILE_PREFIX = "hvd-stacks-"
_FIRST_SIGNAL = 3  # offset from SIGRTMIN, because debuggers and libraries use the first real-time signals

_MOST_BYTES = 3000  # limit of a stack that is sent to other ranks

_descriptor: int | None = None


def main_stack() -> str:
    """Return the main thread's Python stack, innermost call last. Outermost calls are cut if it is long."""
    import traceback

    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return "its main thread has ended"
    calls = traceback.format_stack(frame)
    kept: list[str] = []
    while calls and sum(map(len, kept)) + len(calls[-1]) <= _MOST_BYTES:
        kept.insert(0, calls.pop())
    first = f"pid {os.getpid()}, main thread" + (f" (without the {len(calls)} outermost calls)" if calls else "")
    return "\n".join([first, *"".join(kept).rstrip().splitlines()])


def offer() -> None:
    """Start to answer `hvd stacks`. Do nothing if the system does not allow it, or at a second call. Never raise."""
    global _descriptor
    number = _free_signal() if _descriptor is None else None
    if number is None:
        return
    try:
        descriptor = _nameless_file(f"{FILE_PREFIX}{number}-")
    except OSError:
        return  # `hvd stacks` is only a convenience, so a failure must not stop the job
    # Open the file for appending, so that the reader can empty it between two signals.
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
    _descriptor = descriptor


def _free_signal() -> int | None:
    """Return a real-time signal that still has its default action, which ends the process, so no program sends it."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            masks = dict(line.rstrip("\n").split(":\t", 1) for line in status if line.startswith("Sig"))
        taken = int(masks["SigCgt"], 16) | int(masks["SigIgn"], 16) | int(masks["SigBlk"], 16)
    except (OSError, KeyError, ValueError):
        return None  # without /proc, `hvd stacks` could not read the answer either
    numbers = range(signal.SIGRTMIN + _FIRST_SIGNAL, signal.SIGRTMAX + 1)
    return next((number for number in numbers if not taken >> (number - 1) & 1), None)


def _nameless_file(prefix: str) -> int:
    try:
        return os.memfd_create(prefix)
    except (AttributeError, OSError):  # a sandbox may refuse it: use a file that is unlinked at once
        import tempfile

        descriptor, path = tempfile.mkstemp(prefix=prefix)
        os.unlink(path)
        return descriptor
