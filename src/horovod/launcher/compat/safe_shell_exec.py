# SPDX-License-Identifier: Apache-2.0
"""Commands that leave no processes behind. See horovod.launcher.start.processes."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

import psutil

from horovod.common.readiness import is_readable
from horovod.launcher.compat.threads import in_thread, on_event
from horovod.launcher.start.processes import Ended, ProcessTree, Refused

GRACEFUL_TERMINATION_TIME_S = 5
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)")
_CHUNK = 1 << 16
_LOOK_S = 0.1
_READ_LIMIT_S = 5.0


def execute(
    command: str | Sequence[str],
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    index: int | None = None,
    events: Sequence[threading.Event] | None = None,
    prefix_output_with_timestamp: bool = False,
) -> int:
    """Run a shell command (or a list of words) until it ends or an event is set, and return its exit code.

    Its output goes to `stdout` and `stderr`, by default those of this process. With an index, each line starts with
    `[index]<stdout>:`. Every process that the command started ends with it, even if this process is killed.
    """
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    over = threading.Event()
    with ProcessTree() as tree:
        pipes = tree.start(0, words, os.environ if env is None else env)
        streams = (stdout if stdout is not None else sys.stdout, stderr if stderr is not None else sys.stderr)
        readers = [
            in_thread(prefix_connection, (pipe, stream, name, index, prefix_output_with_timestamp))
            for pipe, stream, name in zip(pipes, streams, ("stdout", "stderr"), strict=True)
        ]
        for event in events or ():
            on_event(event, tree.end, (GRACEFUL_TERMINATION_TIME_S,), stop=over, check_stop_interval_s=_LOOK_S)
        try:
            return _wait(tree, words[0])
        finally:
            over.set()
            _end(tree)
            for reader, pipe in zip(readers, pipes, strict=True):
                reader.join(_READ_LIMIT_S)
                pipe.close()


def prefix_connection(
    src_connection: Any,
    dst_stream: TextIO,
    prefix: str,
    index: int | None,
    prefix_output_with_timestamp: bool,
) -> None:
    """Copy text line by line to `dst_stream` until its source (a descriptor, file or connection) ends.

    With an index each line begins with `[index]<prefix>:`, after the time if requested.
    """
    rest = ""
    for chunk in _chunks(src_connection):
        rest += chunk
        end = 0
        for line in _LINE.finditer(rest):
            if line.group().endswith("\r") and line.end() == len(rest):
                break  # "\n" may follow in the next chunk
            end = line.end()
            _write(dst_stream, line.group(), prefix, index, prefix_output_with_timestamp)
        rest = rest[end:]
    if rest:
        _write(dst_stream, rest, prefix, index, prefix_output_with_timestamp)


def terminate_executor_shell_and_children(pid: int) -> None:
    """End a process and its descendants: SIGTERM, then SIGKILL after GRACEFUL_TERMINATION_TIME_S."""
    try:
        parent = psutil.Process(pid)
        tree = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for number, limit_s in ((signal.SIGTERM, GRACEFUL_TERMINATION_TIME_S), (signal.SIGKILL, 1)):
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        _, tree = psutil.wait_procs(tree, timeout=limit_s)
        if not tree:
            return


def _wait(tree: ProcessTree, program: str) -> int:
    while True:
        is_readable(tree)
        for event in tree.events():
            if isinstance(event, Refused):
                raise OSError(event.number, os.strerror(event.number), program)
            if isinstance(event, Ended):
                return event.code


def _end(tree: ProcessTree) -> None:
    """End the processes that the command left behind."""
    if tree.is_over:
        return
    tree.end(GRACEFUL_TERMINATION_TIME_S)
    deadline = time.monotonic() + tree.end_limit_s(GRACEFUL_TERMINATION_TIME_S)
    while not tree.is_over and (left := deadline - time.monotonic()) > 0:
        is_readable(tree, left)
        tree.events()


def _chunks(source: Any) -> Iterator[str]:
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    with suppress(EOFError):
        while data := _read(source):
            yield data if isinstance(data, str) else decoder.decode(data)
    if last := decoder.decode(b"", final=True):
        yield last


def _read(source: Any) -> bytes | str:
    if isinstance(source, int):
        return os.read(source, _CHUNK)
    if hasattr(source, "recv_bytes"):
        return bytes(source.recv_bytes())
    read = getattr(source, "read1", None) or source.read
    data = read(_CHUNK)
    return data if data is not None else b""


def _write(stream: Any, line: str, prefix: str, index: int | None, timestamps: bool) -> None:
    if index is not None:
        line = f"{time.ctime() if timestamps else ''}[{index}]<{prefix}>:{line}"
    stream.write(line)
    stream.flush()
