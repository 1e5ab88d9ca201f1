# SPDX-License-Identifier: Apache-2.0
"""Report to the other ranks and to the launcher, without delay, that an exception ends this rank.

A process may take seconds to end after its exception, because of atexit handlers and threads that are joined. Meanwhile
other ranks would fail without knowing why, end sooner, and be blamed. sys.excepthook reports the exception. If another
library has replaced that hook, the exception is noticed when the interpreter begins to end. exit_code.py notices a
SystemExit. Code that catches exceptions of the user's function (horovod.run, Ray's workers) calls `tell`.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Protocol

from horovod.common import exit_code, settings, threads_at_exit, topology
from horovod.common.escaping import escaped
from horovod.common.exceptions import HorovodInternalError
from horovod.common.joining.elastic_place import is_elastic, report_leave
from horovod.common.rendezvous.client import Connection
from horovod.common.rendezvous.protocol import RendezvousError

MAX_CHARS = 200
CUT = "..."
_MAX_CAUSES = 100
_REPORT_LIMIT_S = 1.0


class Member(Protocol):
    """Object by which this process takes part in a world of ranks."""

    def fail(self, what: str) -> bool | None:
        """End the world, with an error that says what this rank did.

        `what` continues "rank N", for example "raised ValueError". Return False if the world had ended before, and None
        if there is no world.
        """


class _Watch:
    """Hooks that notice the exception that ends the program, and whether it has been reported."""

    def __init__(self) -> None:
        self.members: weakref.WeakSet[Member] = weakref.WeakSet()
        self.process = 0  # process in which the hooks were installed; a forked child is not a rank
        self.has_told = False
        self._previous = sys.__excepthook__

    def install(self) -> None:
        if self.process:
            return
        self.process = os.getpid()
        self._previous, sys.excepthook = sys.excepthook, self._on_exception
        # These handlers run before threads are joined and before atexit handlers, which may take long.
        register = getattr(threading, "_register_atexit", atexit.register)
        try:
            register(self._on_end)
        except RuntimeError:  # the interpreter is already ending
            atexit.register(self._on_end)
        with suppress(Exception):  # if this fails, only the launcher learns the exit code, and later
            exit_code.watch_exit(self._on_exit)

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # Call the interpreter's own hook first: it is quick, and the first error of a job should be printed first.
        is_own = self._previous is sys.__excepthook__
        if is_own:
            self._previous(kind, error, trace)
        self._tell_if_it_ends_the_program(error)
        if not is_own:
            self._previous(kind, error, trace)

    def _on_end(self) -> None:
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            self._tell_if_it_ends_the_program(error)

    def _tell_if_it_ends_the_program(self, error: BaseException) -> None:
        with suppress(Exception):  # an error here must not hide the program's own error
            if not self.has_told and not _is_interactive() and _has_left_the_program(error):
                threads_at_exit.prepare_threads()
                tell(error)

    def _on_exit(self, error: BaseException, code: object) -> None:
        if code not in (None, 0) and not self.has_told:
            threads_at_exit.prepare_threads()
            tell(error, code if isinstance(code, int) else 1)


_watch = _Watch()


def watch(member: Member) -> None:
    """End the world of `member` too if an exception ends the program."""
    _watch.install()
    _watch.members.add(member)


def tell(error: BaseException, code: int = 1) -> None:
    """Report to the other ranks and to the launcher that this exception ends this rank.

    An error that comes from another rank, or that all ranks get, is not sent to the other ranks, because this rank did
    not cause it. The launcher of a fixed job gets a report of the first failure only. An elastic driver gets a report
    from each worker that ends.

    Args:
        error: The exception, which no code will handle.
        code: The exit code to expect.
    """
    if _watch.process not in (0, os.getpid()):
        return
    what, blames_peer = f"raised {described(error)}", _is_of_another_rank(error)
    is_first = not blames_peer and _end_worlds(what)
    if (is_first or is_elastic(os.environ)) and not _watch.has_told:
        _watch.has_told = True
        # If the report fails, the launcher notices when this process ends.
        with suppress(OSError, RendezvousError, ValueError):
            _report(what, code, blames_peer)


def _end_worlds(what: str) -> bool:
    """End all worlds of this rank. Return False if another failure has ended all of them before."""
    answers = [member.fail(what) for member in list(_watch.members)]
    return any(answers) or all(answer is None for answer in answers)


def described(error: BaseException) -> str:
    """Return the exception on one line of at most MAX_CHARS printable characters."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:
        text = ""
    return printable(f"{name}: {text[:MAX_CHARS]}" if text else name)


def printable(text: str) -> str:
    """Return a text with control characters escaped, cut to MAX_CHARS."""
    shown = escaped(text[: MAX_CHARS + 1], keep="")
    return shown if len(shown) <= MAX_CHARS else shown[: MAX_CHARS - len(CUT)] + CUT


def _is_of_another_rank(error: BaseException) -> bool:
    """Return True if a HorovodInternalError led to this error: a rank was lost, or every rank gets that error."""
    to_see, seen = [error], set[int]()
    while to_see and len(seen) < _MAX_CAUSES:
        one = to_see.pop()
        if isinstance(one, HorovodInternalError):
            return True
        seen.add(id(one))
        to_see += [cause for cause in (one.__cause__, one.__context__) if cause is not None and id(cause) not in seen]
    return False


def _is_interactive() -> bool:
    """Return True if the program continues after an unhandled exception."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or bool(os.environ.get("PYTHONINSPECT"))


def _has_left_the_program(error: BaseException) -> bool:
    """Return True if the exception has passed the outermost frame of the main thread.

    Test runners and notebooks set sys.last_value, and some libraries call sys.excepthook, for exceptions that they have
    caught. Such an exception has passed inner frames only, or the frame that caught it is still running.
    """
    trace = error.__traceback__
    if trace is None or threading.current_thread() is not threading.main_thread():
        return False
    running: FrameType | None = sys._getframe()
    while running is not None and running is not trace.tb_frame:
        running = running.f_back
    return running is None and trace.tb_frame.f_back is None


def _report(what: str, code: int, blames_peer: bool) -> None:
    """Report the failure to the launcher of this job, or to its elastic driver."""
    if is_elastic(os.environ):
        report_leave(os.environ, what, code, _REPORT_LIMIT_S, blames_peer=blames_peer)
        return
    place = topology.discover(os.environ)
    chosen = settings.load(os.environ)
    is_ours = place.is_launched and not place.by_foreign_launcher and chosen.text("HOROVOD_RENDEZVOUS") != "self"
    if not is_ours:
        return
    where = topology.rendezvous(place, chosen, os.environ)
    with Connection.open(where.address, where.port, where.secret, _REPORT_LIMIT_S) as connection:
        # The field "birth" holds an elastic worker's id. A fixed job sends the rank instead.
        message = {"op": "report", "birth": place.rank, "leaves": what, "code": code}
        connection.report(message, _REPORT_LIMIT_S)
