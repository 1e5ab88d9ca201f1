# SPDX-License-Identifier: Apache-2.0
"""Tells the other ranks and the launcher at once that this rank ends because of an exception.

A process may take seconds to end after its exception: handlers of atexit, threads that are joined. Meanwhile other
ranks would fail without knowing why, end sooner, and be taken for the cause. The exception is noticed by
sys.excepthook; where another library has replaced that hook, when the interpreter begins to end; SystemExit by
exit_code.py. Code that catches exceptions of the user's function (horovod.run, Ray's workers) calls `tell`.
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
    """Something by which this process takes part in a world of ranks."""

    def fail(self, what: str) -> bool | None:
        """End the world because this rank `what`. False if it had ended before; None if there is none."""


class _Watch:
    """What this process has told, and the hooks by which it learns that there is something to tell."""

    def __init__(self) -> None:
        self.members: weakref.WeakSet[Member] = weakref.WeakSet()
        self.process = 0  # in which the hooks were installed; a forked child is no rank
        self.has_told = False
        self._previous = sys.__excepthook__

    def install(self) -> None:
        if self.process:
            return
        self.process = os.getpid()
        self._previous, sys.excepthook = sys.excepthook, self._on_exception
        # Before threads are joined and before other handlers of the program's end, which may take long.
        register = getattr(threading, "_register_atexit", atexit.register)
        try:
            register(self._on_end)
        except RuntimeError:  # the interpreter is ending already
            atexit.register(self._on_end)
        with suppress(Exception):  # only the exit code of SystemExit is then learned late, by the launcher
            exit_code.watch_exit(self._on_exit)

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # The interpreter's own hook is quick, and the first error of a job is to be shown first.
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
        with suppress(Exception):  # the program's own error matters more than one of ours
            if not self.has_told and not _is_interactive() and _has_left_the_program(error):
                threads_at_exit.prepare_threads()
                tell(error)

    def _on_exit(self, error: BaseException, code: object) -> None:
        if code not in (None, 0) and not self.has_told:
            threads_at_exit.prepare_threads()
            tell(error, code if isinstance(code, int) else 1)


_watch = _Watch()


def watch(member: Member) -> None:
    """End this world, too, if an exception ends the program."""
    _watch.install()
    _watch.members.add(member)


def tell(error: BaseException, code: int = 1) -> None:
    """Tell the other ranks and the launcher that this exception ends what this rank does.

    An error that comes from another rank, or that all ranks have, is not sent to the other ranks: this rank is not to
    blame for it. The launcher of a fixed job gets a report of the first failure alone. An elastic driver gets a report
    from each worker that ends.

    Args:
        error: The exception, which nothing will handle.
        code: The exit code to expect.
    """
    if _watch.process not in (0, os.getpid()):
        return
    what, blames_peer = f"raised {described(error)}", _is_of_another_rank(error)
    is_first = not blames_peer and _end_worlds(what)
    if (is_first or is_elastic(os.environ)) and not _watch.has_told:
        _watch.has_told = True
        with suppress(OSError, RendezvousError, ValueError):  # then the launcher learns of it when this process ends
            _report(what, code, blames_peer)


def _end_worlds(what: str) -> bool:
    """Let all worlds of this rank fail. Return False if another failure has ended them before."""
    answers = [member.fail(what) for member in list(_watch.members)]
    return any(answers) or all(answer is None for answer in answers)


def described(error: BaseException) -> str:
    """The exception on one line of at most MAX_CHARS printable characters."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:
        text = ""
    return printable(f"{name}: {text[:MAX_CHARS]}" if text else name)


def printable(text: str) -> str:
    """A text with control characters escaped, cut to MAX_CHARS."""
    shown = escaped(text[: MAX_CHARS + 1], keep="")
    return shown if len(shown) <= MAX_CHARS else shown[: MAX_CHARS - len(CUT)] + CUT


def _is_of_another_rank(error: BaseException) -> bool:
    """Return True if an error of the engine led to this one: a rank was lost, or every rank gets the same error."""
    to_see, seen = [error], set[int]()
    while to_see and len(seen) < _MAX_CAUSES:
        one = to_see.pop()
        if isinstance(one, HorovodInternalError):
            return True
        seen.add(id(one))
        to_see += [cause for cause in (one.__cause__, one.__context__) if cause is not None and id(cause) not in seen]
    return False


def _is_interactive() -> bool:
    """Return True if the program goes on after an unhandled exception."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or bool(os.environ.get("PYTHONINSPECT"))


def _has_left_the_program(error: BaseException) -> bool:
    """Return True if the exception has passed the outermost frame of the main thread.

    Test runners and notebooks set sys.last_value, and some libraries call sys.excepthook, for exceptions that they have
    caught: these have passed inner frames only, or the frame that has caught them still runs.
    """
    trace = error.__traceback__
    if trace is None or threading.current_thread() is not threading.main_thread():
        return False
    running: FrameType | None = sys._getframe()
    while running is not None and running is not trace.tb_frame:
        running = running.f_back
    return running is None and trace.tb_frame.f_back is None


def _report(what: str, code: int, blames_peer: bool) -> None:
    """Tell the launcher of this job, or its elastic driver."""
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
        # The rank stands where an elastic worker has its birth id.
        message = {"op": "report", "birth": place.rank, "leaves": what, "code": code}
        connection.report(message, _REPORT_LIMIT_S)
