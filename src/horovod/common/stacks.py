# SPDX-License-Identifier: Apache-2.0
"""What a worker's program is doing, for those who ask.

`hvd stacks` asks by a real-time signal, on which the Python stacks of all threads are written. They go into memory
without a path that `hvd stacks` reads through /proc, so nothing is ever left behind. The writer is faulthandler's C
code: it also works while the main thread waits inside the engine.

The engine asks when other ranks wait for this one. No signal is used then, for nobody is there to see what it might
disturb.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import sys
import threading

# The signal's number follows the name, for it depends on the C library and on what the application uses itself.
FILE_PREFIX = "hvd-stacks-"
_FIRST_SIGNAL = 3  # above SIGRTMIN; debuggers and libraries like the first ones

_MOST_BYTES = 3000  # of a stack that travels to other ranks

_descriptor: int | None = None


def main_stack() -> str:
    """The main thread's Python stack as Python prints it, innermost call last; the outermost are cut if it is long."""
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
    """Answer `hvd stacks` from now on; never fails. Does nothing where it cannot be done, or the second time."""
    global _descriptor
    number = _free_signal() if _descriptor is None else None
    if number is None:
        return
    try:
        descriptor = _nameless_file(f"{FILE_PREFIX}{number}-")
    except OSError:
        return  # a convenience: no reason to stop a job
    # Appending lets the reader empty the file between two uses.
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
    _descriptor = descriptor


def _free_signal() -> int | None:
    """A real-time signal that still has its default, which would end the process: nobody relies on that."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            masks = dict(line.rstrip("\n").split(":\t", 1) for line in status if line.startswith("Sig"))
        taken = int(masks["SigCgt"], 16) | int(masks["SigIgn"], 16) | int(masks["SigBlk"], 16)
    except (OSError, KeyError, ValueError):
        return None  # without /proc nobody could read the answer either
    numbers = range(signal.SIGRTMIN + _FIRST_SIGNAL, signal.SIGRTMAX + 1)
    return next((number for number in numbers if not taken >> (number - 1) & 1), None)


def _nameless_file(prefix: str) -> int:
    try:
        return os.memfd_create(prefix)
    except (AttributeError, OSError):  # refused by a sandbox: a file that loses its name at once
        import tempfile

        descriptor, path = tempfile.mkstemp(prefix=prefix)
        os.unlink(path)
        return descriptor
