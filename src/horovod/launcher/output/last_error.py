# SPDX-License-Identifier: Apache-2.0
"""The traceback that explains why a worker failed, reduced to the user's code, for the summary of a failed job.

It reads tracebacks of Python, of chained exceptions, and of faulthandler after a crash.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections import Counter, deque
from dataclasses import dataclass, field

from horovod.common.leaving import CUT, printable

_START = b"Traceback (most recent call last):"
_CRASH = b"Fatal Python error: "
_CRASHED_THREAD = (b"Current thread ", b"Stack (most recent call first)")
_OTHER_THREAD = b"Thread "
_CHAINS = (
    b"The above exception was the direct cause of the following exception:",
    b"During handling of the above exception, another exception occurred:",
)
_FRAME = re.compile(r'  File "(?P<path>.+)", line (?P<line>\d+),? in (?P<where>.+)')
_INDENTS = (b" ", b"\t")
_RANK = re.compile(rb"\[rank\d+\]: ")  # torch.distributed adds this before each line of a traceback
_MAX_KEPT = 8
_MAX_LINES = 2000
_MAX_CHARS = 1000  # large, because errors of this package end with the remedy
_MAX_FRAMES = 12  # frames of the user's own code, because a recursion has thousands
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\](\w+)")
_STANDARD_LIBRARY = os.path.join(sysconfig.get_path("stdlib"), "")
_OUR_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


@dataclass(frozen=True)
class Traceback:
    """One traceback, including those of the exceptions that led to it. It has no lines if there was none."""

    lines: tuple[str, ...] = ()

    @property
    def error(self) -> str:
        """Return the line that names the error, or an empty string."""
        return "" if not self.lines else self.lines[0] if self._is_crash else self.lines[-1]

    def summary(self) -> list[str]:
        """Return the user's frames, the number of the others, and the error. Without a traceback, return no lines."""
        lines = list(self.lines)
        if not lines:
            return []
        if self._is_crash:
            return _crash_summary(lines)
        *causes, last = _split(lines)
        shown = [*_folded(_frames(last)), _cut(last[-1])]
        return [*shown, *(f"caused by: {_cut(cause[-1])}" for cause in reversed(causes))]

    @property
    def _is_crash(self) -> bool:
        return self.lines[0].startswith(_CRASH.decode())


@dataclass
class LastError:
    """Collector of a worker's stderr that keeps the last tracebacks."""

    _kept: deque[list[bytes]] = field(default_factory=lambda: deque(maxlen=_MAX_KEPT))
    _is_inside: bool = False
    _continues: bool = False  # True if the next traceback continues the last one

    def feed(self, lines: list[bytes]) -> None:
        """Take lines without their line ends."""
        for line in lines:
            prefix = _RANK.match(line)
            self._next(line[prefix.end() :] if prefix else line)

    def _next(self, line: bytes) -> None:
        if line == _START and self._continues and self._kept:
            self._kept[-1].append(line)
            self._is_inside, self._continues = True, False
        elif line == _START or line.startswith(_CRASH):
            self._kept.append([line])
            self._is_inside, self._continues = True, False
        elif self._is_inside and len(self._kept[-1]) < _MAX_LINES:
            self._kept[-1].append(line)
            # The line with the error ends a traceback. The report of a crash has one part for each thread.
            self._is_inside = not line or line.startswith((*_INDENTS, *_CRASHED_THREAD, _OTHER_THREAD))
        elif line in _CHAINS:
            self._continues = True

    def last(self) -> Traceback:
        """Return the last traceback."""
        return self._tracebacks()[-1] if self._kept else Traceback()

    def of(self, exception: str) -> Traceback:
        """Return the last traceback that ends with this exception.

        It need not be the last of all tracebacks, because handlers of atexit may have printed others after it.


        Args:
            exception: Its type's name and its text on one line, as far as known: "ValueError: no such file".
        """
        kind = exception.partition(":")[0]
        alike = [one for one in self._tracebacks() if _without_module(one.error).partition(":")[0] == kind]
        exact = [one for one in alike if _has_text(one, exception)]
        return [Traceback(), *alike, *exact][-1]

    def _tracebacks(self) -> list[Traceback]:
        kept = list(self._kept)  # copied, because another thread adds to it
        return [Traceback(tuple(line.decode(errors="replace") for line in list(lines))) for lines in kept]


def _has_text(traceback: Traceback, exception: str) -> bool:
    """Return True if the texts agree. A traceback has only the first line, and the exception's text may be cut."""
    shown = printable(_without_module(traceback.error))
    return exception.startswith(shown) or (exception.endswith(CUT) and shown.startswith(exception.removesuffix(CUT)))


def _without_module(error: str) -> str:
    kind, colon, text = error.partition(":")
    return kind.rpartition(".")[2] + colon + text


@dataclass(frozen=True)
class _Frame:
    path: str
    line: str
    where: str
    source: str

    @property
    def library(self) -> str:
        """Return the package that the frame is in, or an empty string for the user's code."""
        if found := _INSTALLED.search(self.path):
            return found[1]
        if self.path.startswith(_OUR_PACKAGE):
            return "horovod"
        return "Python" if self.path.startswith((_STANDARD_LIBRARY, "<frozen ")) else ""


def _split(lines: list[str]) -> list[list[str]]:
    starts = [index for index, line in enumerate(lines) if line == _START.decode()]
    return [lines[start:end] for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]


def _frames(lines: list[str]) -> list[_Frame]:
    found = []
    for index, line in enumerate(lines):
        if match := _FRAME.fullmatch(line):
            follows = lines[index + 1] if index + 1 < len(lines) else ""
            source = follows.strip() if follows.startswith("    ") else ""
            found.append(_Frame(match["path"], match["line"], match["where"], source))
    return found


def _folded(frames: list[_Frame]) -> list[str]:
    """Return the user's frames with their sources, and one line for each run of other frames.

    If there are no frames of the user, return the last frame.
    """
    own = [index for index, frame in enumerate(frames) if not frame.library] or [len(frames) - 1][: len(frames)]
    if len(own) > _MAX_FRAMES:
        own = [*own[: _MAX_FRAMES // 2], *own[-_MAX_FRAMES // 2 :]]
    shown: list[str] = []
    before = 0
    for index in [*own, len(frames)]:
        shown += _count(frames[before:index])
        if index < len(frames):
            frame = frames[index]
            shown.append(f"{_relative(frame.path)}:{frame.line}, in {frame.where}")
            shown += [f"  {_cut(frame.source)}"] if frame.source else []
        before = index + 1
    return shown


def _count(frames: list[_Frame]) -> list[str]:
    if not frames:
        return []
    libraries = Counter(frame.library or "the program" for frame in frames)
    return [f"({len(frames)} frame{'s' * (len(frames) > 1)} of {', '.join(libraries)})"]


def _crash_summary(lines: list[str]) -> list[str]:
    """Return the summary of a crash. faulthandler shows the innermost frame first, and all threads."""
    start = next((index for index, line in enumerate(lines) if line.startswith(_names(_CRASHED_THREAD))), 0)
    end = next(
        (index for index in range(start + 1, len(lines)) if not lines[index].startswith("  ")),
        len(lines),
    )
    return [*_folded(_frames(lines[start:end])[::-1]), _cut(lines[0])]


def _names(prefixes: tuple[bytes, ...]) -> tuple[str, ...]:
    return tuple(prefix.decode() for prefix in prefixes)


def _relative(path: str) -> str:
    folder = os.path.join(os.getcwd(), "")
    return path.removeprefix(folder)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + "..."
