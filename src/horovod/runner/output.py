# SPDX-License-Identifier: Apache-2.0
"""Forwards the workers' output, line by line, with a prefix for each rank; keeps the last lines for the post-mortem.

One thread reads all pipes, so that a slow terminal never holds up the supervision of the workers.
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
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, BinaryIO, TextIO

from horovod.runner.tracebacks import TracebackFolder

Sink = Callable[[bytes], None]

_LINE_END = re.compile(rb"\r\n|\n|\r")
_LONGEST_LINE = 1 << 20
_TAIL_LINES = 20
_TAIL_LINE_BYTES = 2000
_COLOURS = (36, 33, 32, 35, 34, 31)


class LineSplitter:
    """Chunks of bytes to lines without their ends. A carriage return ends a line too (progress bars)."""

    def __init__(self) -> None:
        self._rest = b""
        self._skip_newline = False

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._skip_newline and chunk[:1] == b"\n":
            chunk = chunk[1:]
        data = self._rest + chunk
        lines = []
        start = 0
        self._skip_newline = False
        for end in _LINE_END.finditer(data):
            # A progress bar writes "\r" before its text: no empty line for that.
            if end.start() > start or end.group() != b"\r":
                lines.append(data[start : end.start()])
                # The second half of "\r\n" may come with the next chunk.
                self._skip_newline = end.group() == b"\r" and end.end() == len(data)
            start = end.end()
        self._rest = data[start:]
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        return lines

    def flush(self) -> list[bytes]:
        """The last line, if it had no end."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


@dataclass
class OutputOptions:
    size: int
    directory: str | None = None
    timestamps: bool = False
    colour: bool = False
    fold_tracebacks: bool = True


class _Stream:
    """One pipe of one worker."""

    def __init__(self, rank: int, name: str, pipe: IO[bytes], sink: Sink, options: OutputOptions) -> None:
        self.rank = rank
        self.name = name
        self.pipe = pipe
        self.splitter = LineSplitter()
        self.tail: deque[bytes] = deque(maxlen=_TAIL_LINES)
        self.muted = False
        self.muted_lines = 0
        self._folder = TracebackFolder() if name == "stderr" and options.fold_tracebacks else None
        self._sink = sink
        self._timestamps = options.timestamps
        self._prefix = f"[{rank}]<{name}>:".encode()
        if options.colour:
            self._prefix = b"\x1b[%dm%s\x1b[0m" % (_COLOURS[rank % len(_COLOURS)], self._prefix)
        self._file = _open_file(options, rank, name)

    def take(self, chunk: bytes) -> None:
        if self._file is not None:
            try:
                self._file.write(chunk)
            except OSError as error:
                print(f"horovodrun: cannot write {self._file.name}: {error}", file=sys.stderr)
                self._file = None
        self._show(self.splitter.feed(chunk))

    def finish(self) -> None:
        self._show(self.splitter.flush())
        if self._folder is not None:
            self._write(self._folder.flush())
        if self._file is not None:
            self._file.close()
        self.pipe.close()

    def _show(self, lines: list[bytes]) -> None:
        self.tail.extend(line[:_TAIL_LINE_BYTES] for line in lines)
        self._write(self._folder.feed(lines) if self._folder is not None else lines)

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        if self.muted:
            self.muted_lines += len(lines)
            return
        prefix = (time.ctime().encode() if self._timestamps else b"") + self._prefix
        self._sink(b"".join(prefix + line + b"\n" for line in lines))


class OutputForwarder:
    """`add` the pipes of each worker, `start`, and `stop` when the job is over."""

    def __init__(self, options: OutputOptions, stdout: Sink, stderr: Sink) -> None:
        self._options = options
        self._sinks = {"stdout": stdout, "stderr": stderr}
        self._selector = selectors.DefaultSelector()
        self._streams: dict[tuple[int, str], _Stream] = {}
        self._changed = threading.Condition()
        self._open: set[_Stream] = set()
        self._stop_receiver, self._stop_sender = socket.socketpair()
        self._selector.register(self._stop_receiver, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._forward, name="horovod-output", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, rank: int, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        for name, pipe in (("stdout", stdout), ("stderr", stderr)):
            os.set_blocking(pipe.fileno(), False)
            stream = _Stream(rank, name, pipe, self._sinks[name], self._options)
            self._streams[rank, name] = stream
            with self._changed:
                self._open.add(stream)
            self._selector.register(pipe, selectors.EVENT_READ, stream)

    def wait_until_read(self, rank: int | None, timeout_s: float) -> bool:
        """Wait until all output of a rank (None: of every rank) was forwarded; False if the time was not enough."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not any(rank is None or stream.rank == rank for stream in self._open), timeout_s
            )

    def last_error_lines(self, rank: int) -> list[str]:
        stream = self._streams.get((rank, "stderr"))
        return [line.decode(errors="replace") for line in list(stream.tail)] if stream is not None else []

    def show_errors_only_of(self, rank: int) -> None:
        """From now on the other ranks' stderr goes to the output files alone: one cause, not one traceback for each."""
        for stream in self._streams.values():
            stream.muted = stream.name == "stderr" and stream.rank != rank

    def muted_lines(self) -> int:
        return sum(stream.muted_lines for stream in self._streams.values())

    def stop(self) -> None:
        self._stop_sender.send(b"\0")
        self._thread.join()
        for stream in list(self._open):
            self._finish(stream)
        self._selector.close()
        self._stop_receiver.close()
        self._stop_sender.close()

    def _forward(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                self._read(key.data)

    def _read(self, stream: _Stream) -> None:
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

    def _finish(self, stream: _Stream) -> None:
        self._selector.unregister(stream.pipe)
        stream.finish()
        with self._changed:
            self._open.discard(stream)
            self._changed.notify_all()


def descriptor_sink(descriptor: int) -> Sink:
    """Writes to a descriptor of this process; silent once the reader is gone, so that `| head` does not end a job."""

    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                time.sleep(0.005)  # someone made our terminal non-blocking
            except OSError:
                return

    return write


def text_sink(stream: TextIO) -> Sink:
    """Writes to a Python text stream: sys.stdout of a notebook is not descriptor 1."""

    def write(data: bytes) -> None:
        try:
            stream.write(data.decode(errors="replace"))
            stream.flush()
        except (OSError, ValueError):
            pass  # closed by its owner

    return write


def wants_colour() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _open_file(options: OutputOptions, rank: int, name: str) -> BinaryIO | None:
    if options.directory is None:
        return None
    directory = os.path.join(options.directory, f"rank.{rank:0{len(str(options.size - 1))}d}")
    os.makedirs(directory, exist_ok=True)
    return open(os.path.join(directory, name), "wb", buffering=0)
