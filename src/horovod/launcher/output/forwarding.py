# SPDX-License-Identifier: Apache-2.0
"""Forwarding of the workers' output by line, with a prefix for each rank. It keeps the last lines for error reports.

A terminal shows the current state of a rewritten line (a progress bar) in place; other readers get its last state. One
thread reads all pipes. While a reader of the launcher's output is slow, the pipes that feed it are not read: the
workers then wait, as if they wrote to the reader themselves, and no output is lost.
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO

from horovod.launcher.output.last_error import LastError
from horovod.launcher.output.notebooks import in_notebook
from horovod.launcher.output.tracebacks import ShownTracebacks, TracebackFolder
from horovod.launcher.output.user_output import UserOutput
from horovod.launcher.output.writers import Sink

_ENDS = re.compile(rb"\n|\r")
LONGEST_LINE = 32 << 20
_LONGEST_BAR = 1 << 14
_TAIL_LINES = 20
_TAIL_LINE_BYTES = 2000
_LAST_BYTES = 1 << 18  # bytes read of a worker that ends, even if the reader is slow
_STOP_LIMIT_S = 1.0
_COLOURS = (36, 33, 32, 35, 34, 31)


class LineSplitter:
    """Splitter of bytes into lines. A carriage return ends no line, because the next text overwrites the current one.

    A line of more than LONGEST_LINE bytes is split, because a program may print without any newline.
    """

    def __init__(self) -> None:
        self._rest = bytearray()  # contains no line end, so that each byte is searched once
        self._state = b""  # text before the last carriage return
        self._rewrites = False  # True if the line has a carriage return

    def feed(self, chunk: bytes) -> list[bytes]:
        lines = []
        start = 0
        for end in _ENDS.finditer(chunk):
            self._rest += chunk[start : end.start()]
            start = end.end()
            text = self._take_rest()
            self._rewrites = end.group() == b"\r"
            if not self._rewrites:
                lines.append(text or self._state)
                self._state = b""
            elif text:  # a bar writes "\r" before or after its text, and blanks to erase itself
                self._state = text if text.strip() else b""
        self._rest += chunk[start:]
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._take_rest())
            self._state = b""
        return lines

    @property
    def bar(self) -> bytes | None:
        """Return the current text of a line that is being rewritten, limited to what fits a terminal, or None."""
        if not self._rewrites:
            return None
        begin = bytes(self._rest[:_LONGEST_BAR])
        return (begin if begin.strip() else self._state[:_LONGEST_BAR]) or None

    def flush(self) -> list[bytes]:
        """Return the last line if it had no end."""
        rest = self._take_rest() or self._state
        self._state = b""
        self._rewrites = False
        return [rest] if rest else []

    def _take_rest(self) -> bytes:
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


@dataclass
class OutputOptions:
    size: int
    directory: str | None = None
    timestamps: bool = False
    colour: bool = False
    tags: bool = True  # prefix each line with rank and stream
    fold_tracebacks: bool = True
    own_rank: int | None = None  # the only rank whose output is forwarded here; None means all ranks


class _Stream:
    """One pipe of one worker, and the destinations of its output."""

    def __init__(
        self,
        rank: int,
        name: str,
        pipe: IO[bytes],
        options: OutputOptions,
        shown: Sink,
        file: Sink | None,
        tracebacks: ShownTracebacks,
    ) -> None:
        self.rank = rank
        self.name = name
        self.pipe = pipe
        self.splitter = LineSplitter()
        self.tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self.last_error = LastError()
        self.muted = False
        self.muted_lines = 0
        self.beyond_bounds = 0  # bytes that may be read although a reader is slow
        folds = name == "stderr" and options.fold_tracebacks
        self._folder = TracebackFolder(rank, tracebacks) if folds else None
        self._shown = shown
        self._file = file
        self._timestamps = options.timestamps
        self._prefix = f"[{rank}]<{name}>:".encode() if options.tags else b""
        if options.colour and options.tags:
            self._prefix = b"\x1b[%dm%s\x1b[0m" % (_COLOURS[rank % len(_COLOURS)], self._prefix)

    @property
    def must_wait(self) -> bool:
        behind = self._shown.is_full or (self._file is not None and self._file.is_full)
        return behind and self.beyond_bounds <= 0

    def take(self, chunk: bytes) -> None:
        self.beyond_bounds = max(0, self.beyond_bounds - len(chunk))
        if self._file is not None:
            self._file.put(chunk)
        lines = self.splitter.feed(chunk)
        self._show_bar()
        self._show(lines)

    def finish(self) -> None:
        lines = self.splitter.flush()
        self._show_bar()
        self._show(lines)
        if self._folder is not None:
            self._write(self._folder.flush())
        self.pipe.close()

    def _show_bar(self) -> None:
        bar = None if self.muted else self.splitter.bar
        self._shown.show_bar((self.rank, self.name), self._prefix + bar if bar is not None else None)

    def _show(self, lines: list[bytes]) -> None:
        cut = [line[:_TAIL_LINE_BYTES] for line in lines]
        self.tail.extend(cut)
        if self.name == "stderr":
            self.last_error.feed(cut)
        if self._folder is not None and not self.muted:
            lines = self._folder.feed(lines)
        self._write(lines)

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        if self.muted:
            self.muted_lines += len(lines)
            return
        prefix = (time.ctime().encode() if self._timestamps else b"") + self._prefix
        self._shown.put(b"".join(prefix + line + b"\n" for line in lines))


class OutputForwarder:
    """Forwarder of the workers' output. Call `add` with the pipes of each worker, `start`, and finally `stop`."""

    def __init__(self, options: OutputOptions, output: UserOutput, on_read: Callable[[], None]) -> None:
        """Open the output files. Raise OSError if that fails.

        Args:
            on_read: Called whenever all output of a rank was read.
        """
        self._files = _open_files(options, output)
        self._options = options
        self._output = output
        self._sinks = {"stdout": output.stdout, "stderr": output.stderr}
        self._on_read = on_read
        self._tracebacks = ShownTracebacks()
        self._selector = selectors.DefaultSelector()
        self._streams: dict[tuple[int, str], _Stream] = {}
        self._open: dict[int, set[_Stream]] = {}  # by rank
        self._waiting: set[_Stream] = set()
        self._commands: deque[Callable[[], object]] = deque()
        self._is_stopping = False
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._forward, name="horovod-output", daemon=True)
        for writer in output.writers:
            writer.tell_of_room(lambda: self._post(self._resume))

    def start(self) -> None:
        self._thread.start()

    def add(self, rank: int, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        for name, pipe in (("stdout", stdout), ("stderr", stderr)):
            os.set_blocking(pipe.fileno(), False)
            file = self._files.get((rank, name)) or self._file_for(rank, name)
            stream = _Stream(rank, name, pipe, self._options, self._sinks[name], file, self._tracebacks)
            self._streams[rank, name] = stream
            self._open.setdefault(rank, set()).add(stream)
            self._post(partial(self._selector.register, pipe, selectors.EVENT_READ, stream))

    def _file_for(self, rank: int, name: str) -> Sink | None:
        """Return the file of a worker that joined after the start of the job."""
        if self._options.directory is None:
            return None
        return self._output.file(_path(self._options, rank, name))

    def read_out(self, ranks: Iterable[int]) -> None:
        """Read the last output of ranks that have ended or are about to, within limits, even if a reader is slow."""
        self._post(partial(self._read_out, list(ranks)))

    def has_read(self, rank: int) -> bool:
        """Return True if all output of the rank was read."""
        return rank not in self._open

    @property
    def has_read_all(self) -> bool:
        return not self._open

    def last_error_lines(self, rank: int) -> list[str]:
        stream = self._streams.get((rank, "stderr"))
        return [line.decode(errors="replace") for line in list(stream.tail)] if stream is not None else []

    def last_error(self, rank: int) -> LastError:
        stream = self._streams.get((rank, "stderr"))
        return stream.last_error if stream is not None else LastError()

    def show_errors_only_of(self, rank: int) -> None:
        """From now on write the other ranks' stderr only to the output files, so that the cause is not buried."""
        for stream in self._streams.values():
            stream.muted = stream.name == "stderr" and stream.rank != rank

    def muted_lines(self) -> int:
        return sum(stream.muted_lines for stream in self._streams.values())

    def stop(self) -> None:
        self._post(self._mark_stopping)
        self._thread.join(_STOP_LIMIT_S)
        for stream in [stream for streams in self._open.values() for stream in streams]:
            self._finish(stream)
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    # The methods below are run by the forwarder's thread, and by `stop` after that thread.

    def _post(self, command: Callable[[], object]) -> None:
        self._commands.append(command)
        with suppress(OSError):  # fails if stopped already
            self._wake_sender.send(b"\0", socket.MSG_DONTWAIT)

    def _mark_stopping(self) -> None:
        self._is_stopping = True

    def _forward(self) -> None:
        while not self._is_stopping:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._run_commands()
                else:
                    self._read(key.data)

    def _run_commands(self) -> None:
        with suppress(BlockingIOError):
            self._wake_receiver.recv(4096)
        while self._commands:
            self._commands.popleft()()

    def _read(self, stream: _Stream) -> None:
        if stream.must_wait:
            self._selector.unregister(stream.pipe)
            self._waiting.add(stream)
            return
        try:
            chunk = os.read(stream.pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if chunk:
            stream.take(chunk)
        else:
            self._finish(stream)

    def _resume(self) -> None:
        for stream in [stream for stream in self._waiting if not stream.must_wait]:
            self._waiting.discard(stream)
            self._selector.register(stream.pipe, selectors.EVENT_READ, stream)

    def _read_out(self, ranks: list[int]) -> None:
        for rank in ranks:
            for name in ("stdout", "stderr"):
                self._streams[rank, name].beyond_bounds = _LAST_BYTES
        self._resume()

    def _finish(self, stream: _Stream) -> None:
        if stream in self._waiting:
            self._waiting.discard(stream)
        else:
            self._selector.unregister(stream.pipe)
        stream.finish()
        self._open[stream.rank].discard(stream)
        if not self._open[stream.rank]:
            del self._open[stream.rank]
            self._on_read()


def wants_tags(asked: str | None) -> bool:
    """Return True if lines get tags. `asked` is auto (or None), always or never."""
    return asked == "always" or (asked != "never" and not in_notebook())


def wants_colour() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _open_files(options: OutputOptions, output: UserOutput) -> dict[tuple[int, str], Sink]:
    if options.directory is None:
        return {}
    return {
        (rank, name): output.file(_path(options, rank, name))
        for rank in (range(options.size) if options.own_rank is None else [options.own_rank])
        for name in ("stdout", "stderr")
    }


def _path(options: OutputOptions, rank: int, name: str) -> str:
    assert options.directory is not None
    return os.path.join(options.directory, f"rank.{rank:0{len(str(options.size - 1))}d}", name)
