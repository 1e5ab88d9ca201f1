# SPDX-License-Identifier: Apache-2.0
"""What the engine asks about a thread that has waited in it for a while: where it is, and who else could call.

Ranks that wait for each other fail at once only if nothing could release them. So whatever might call Horovod, now or
later, has to be known: every Python thread might, but for a few that are known never to. Threads that have not called
so far are named: the ranks fail after a while in spite of them.
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

# Modules whose threads do only what they are there for: they call nothing that a user wrote.
_NEVER_CALL = frozenset(
    {
        "horovod.common.rendezvous.server",
        "multiprocessing.queues",  # hands data to the workers of a data loader
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
    """From now on threads of a framework may call the engine whenever they like, without Python knowing of it."""
    global _frameworks_submit
    _frameworks_submit = True


def note_initializer() -> None:
    """Remember the thread that calls hvd.init(): it calls Horovod, even if it leaves the collectives to others."""
    global _initializer
    _initializer = weakref.ref(threading.current_thread())


def told(thread: int) -> str:
    """Return what the engine's tell_block asks about a thread that waits.

    First '1' if nothing else here could submit anything or end the wait; '2' if there are other threads of which only
    the engine can know whether they have called; else '0'. Then the line at which it waits; with '2' also, after a line
    feed, the names of the other threads.
    """
    frames = sys._current_frames()
    own = frames.pop(thread, None)
    frames.pop(threading.get_ident(), None)
    others = {ident: frame for ident, frame in frames.items() if not _never_calls(frame)}
    gives_up = signal.getitimer(signal.ITIMER_REAL)[0] > 0  # signal.alarm(), whose handler raises TimeoutError
    initializer = _initializer() if _initializer is not None else None
    has_caller = initializer is not None and initializer.ident in others
    if own is None or _frameworks_submit or gives_up or has_caller:
        return f"0{line_of(own)}"
    return f"2{line_of(own)}\n{_listed(others.items())}" if others else f"1{line_of(own)}"


def _listed(threads: Iterable[tuple[int, FrameType]]) -> str:
    """The names of threads and where they are, the first few of them."""
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
    """Whether what a thread was started for is in one of those modules."""
    begins = ""
    outer: FrameType | None = frame
    while outer is not None:
        module = str(outer.f_globals.get("__name__"))
        begins = begins if module == "threading" else module
        outer = outer.f_back
    return begins in _NEVER_CALL


def line_of(frame: FrameType | None) -> str:
    """The innermost line of the user's own program; of a library if there is none."""
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
    """As users would name it where the program was started; elsewhere its last part is enough to find it."""
    try:
        start = os.path.join(os.getcwd(), "")
    except OSError:  # the directory is gone
        start = ""
    if start and path.startswith(start):
        return path[len(start) :]
    return os.path.basename(path) if os.path.isabs(path) else path
