# SPDX-License-Identifier: Apache-2.0
"""Answers to the engine about a thread that has waited in it for a while: where it waits, and which threads could call.

Ranks that wait for each other fail at once only if no thread could release them. So every thread that might call
Horovod must be known: any Python thread might, except a few known kinds. Threads that have not called so far are named,
and the ranks fail after a while in spite of them.
"""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import threading
import weakref
from collections.abc import Iterable
from types import FrameType

# Modules whose threads never call functions of the user.
_NEVER_CALL = frozenset(
    {
        "horovod.common.rendezvous.sockets",
        "multiprocessing.queues",  # sends data to the workers of a data loader
        "multiprocessing.resource_sharer",
        "tensorboard.summary.writer.event_file_writer",
        "torch._inductor.compile_worker.subproc_pool",
        "torch.utils.data._utils.pin_memory",
        "tqdm._monitor",
    }
)
_OUR_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_LIBRARIES = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib"))

_MAX_NAMED = 5
_MAX_NAME_CHARS = 60

_frameworks_submit = False
_initializer: weakref.ref[threading.Thread] | None = None


def frameworks_submit() -> None:
    """Record that a framework's own threads may call the engine at any time, unknown to Python."""
    global _frameworks_submit
    _frameworks_submit = True


def note_initializer() -> None:
    """Remember the thread that calls hvd.init().

    It is known to call Horovod, even if other threads call the collectives.
    """
    global _initializer
    _initializer = weakref.ref(threading.current_thread())


def told(thread: int) -> str:
    """Return the answer to the engine's tell_block about a thread that waits.

    The first character is '1' if no other thread here could submit an operation or end the wait, '2' if there are other
    threads and only the engine knows whether they have called, else '0'. The line at which the thread waits follows.
    After '2', a line feed and the names of the other threads follow.
    """
    frames = sys._current_frames()
    own = frames.pop(thread, None)
    frames.pop(threading.get_ident(), None)
    others = {ident: frame for ident, frame in frames.items() if not _never_calls(frame)}
    # A timer such as signal.alarm() may end the wait, because its handler can raise.
    gives_up = signal.getitimer(signal.ITIMER_REAL)[0] > 0
    initializer = _initializer() if _initializer is not None else None
    has_caller = initializer is not None and initializer.ident in others
    if own is None or _frameworks_submit or gives_up or has_caller:
        return f"0{line_of(own)}"
    return f"2{line_of(own)}\n{_listed(others.items())}" if others else f"1{line_of(own)}"


def _listed(threads: Iterable[tuple[int, FrameType]]) -> str:
    """Return the names and lines of the first few threads."""
    known = {thread.ident: thread.name for thread in threading.enumerate()}
    texts = []
    for ident, frame in threads:
        name = known.get(ident, "a thread without a name")
        name = name if len(name) <= _MAX_NAME_CHARS else name[:_MAX_NAME_CHARS] + "..."
        line = line_of(frame)
        texts.append(f"{name!r} ({line})" if line else repr(name))
    more = [f"{len(texts) - _MAX_NAMED} more"] if len(texts) > _MAX_NAMED else []
    return ", ".join([*sorted(texts)[:_MAX_NAMED], *more])


def _never_calls(frame: FrameType) -> bool:
    """Return True if the thread was started by one of the modules in _NEVER_CALL."""
    begins = ""
    outer: FrameType | None = frame
    while outer is not None:
        module = str(outer.f_globals.get("__name__"))
        begins = begins if module == "threading" else module
        outer = outer.f_back
    return begins in _NEVER_CALL


def line_of(frame: FrameType | None) -> str:
    """Return the innermost line of the user's own program, or of a library if there is none."""
    in_library = ""
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((_OUR_FOLDER, "<frozen ")):
            line = f"{_shown(path)}:{frame.f_lineno}"
            if not path.startswith(_LIBRARIES) and "-packages/" not in path:
                return line
            in_library = in_library or line
        frame = frame.f_back
    return in_library


def _shown(path: str) -> str:
    """Return a path relative to the current folder, or only its last part if the file is elsewhere."""
    try:
        start = os.path.join(os.getcwd(), "")
    except OSError:  # the current folder was deleted
        start = ""
    if start and path.startswith(start):
        return path[len(start) :]
    return os.path.basename(path) if os.path.isabs(path) else path
