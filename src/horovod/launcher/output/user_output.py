# SPDX-License-Identifier: Apache-2.0
"""Output of a job for its user (stdout, stderr, files), and how long to wait for readers at the end."""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from typing import TextIO

from horovod.launcher.output import in_place
from horovod.launcher.output.in_place import InPlace
from horovod.launcher.output.writers import (
    Destination,
    Sink,
    Writer,
    is_same_file,
    plain_descriptor,
    to_descriptor,
    to_text,
)

# Time after which output is dropped if its reader reads nothing. It is shorter after a failure, so that the exit code
# comes soon.
PATIENCE_AFTER_SUCCESS_S = 10.0
PATIENCE_AFTER_FAILURE_S = 2.0
_LAST_WORD_S = 0.5


class UserOutput:
    """Output of a job. Call `close` when the job is over. No other method waits for a reader."""

    def __init__(
        self,
        stdout: Destination,
        stderr: Destination,
        *,
        are_one: bool = False,
        terminals: tuple[InPlace | None, InPlace | None] = (None, None),
    ) -> None:
        """Create the writers.

        Args:
            are_one: Both streams go to one place, where their order must be kept.
            terminals: The last lines of the streams that are terminals.
        """
        out = Writer("stdout")
        err = out if are_one else Writer("stderr")
        self.stdout: Sink = out.sink(stdout, self._on_stdout_error)
        self.stderr: Sink = err.sink(stderr, self._on_stderr_error)
        self.is_incomplete = False  # True if something could not be written although there was a reader
        self.stdout.last_line = terminals[0]
        self.stderr.last_line = terminals[0] if are_one else terminals[1]
        self.writers = [out] if are_one else [out, err]
        self._err = err
        self._files: Writer | None = None
        self._descriptors: list[int] = []
        self._by_path: dict[str, Sink] = {}

    def say(self, text: str) -> None:
        """Print a message of the launcher."""
        self.stderr.put(f"horovodrun: {text}\n".encode(errors="replace"))

    def _on_stdout_error(self, error: Exception) -> None:
        if _has_reader_left(error):
            return
        self.is_incomplete = True
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        self.say(f"cannot write to stdout: {reason}; the workers' output is lost from here on")

    def _on_stderr_error(self, error: Exception) -> None:
        self.is_incomplete |= not _has_reader_left(error)

    def file(self, path: str) -> Sink:
        """Return a sink for a new file. A restarted job continues its file.

        Errors that appear later are reported, and the job goes on.

        Raises:
            OSError: The file cannot be opened.
        """
        if path in self._by_path:
            return self._by_path[path]
        descriptor = _open(path)
        self._descriptors.append(descriptor)
        if self._files is None:
            self._files = Writer("files")
            self.writers.insert(0, self._files)  # drain the files first, because their error message goes to stderr
        self._by_path[path] = self._files.sink(
            to_descriptor(descriptor), lambda error: self._on_file_error(path, error)
        )
        return self._by_path[path]

    def _on_file_error(self, path: str, error: Exception) -> None:
        self.is_incomplete |= not _has_reader_left(error)
        self.say(f"cannot write {path} any more: {error}")

    def close(self, went_well: bool) -> None:
        """Wait for readers as long as they read, and report dropped output on stderr if its reader still reads."""
        patience_s = PATIENCE_AFTER_SUCCESS_S if went_well else PATIENCE_AFTER_FAILURE_S
        try:
            self._wait_for_readers(patience_s)
        finally:  # Ctrl-C ends the waiting
            for writer in self.writers:
                writer.close()
            if self._files is None or self._files.is_closed:
                for descriptor in self._descriptors:
                    os.close(descriptor)
            self._descriptors.clear()

    def _wait_for_readers(self, patience_s: float) -> None:
        now = time.monotonic()
        stalled = [writer for writer in self.writers if not writer.drain(patience_s, now)]
        dropped = sum(writer.pending for writer in stalled)
        if stalled and self._err not in stalled:
            self.say(f"{dropped} bytes of output were lost, because their reader has read nothing for {patience_s:g} s")
            self._err.drain(_LAST_WORD_S, time.monotonic())


def _has_reader_left(error: Exception) -> bool:
    """Return True for the normal end of a pipeline such as `horovodrun ... | head`."""
    return isinstance(error, BrokenPipeError)


def fill_closed_descriptors() -> None:
    """Open those of stdin, stdout and stderr that the caller has closed, so that no other file takes their numbers.

    Writing to them still fails with EBADF, because they are opened for reading only.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # takes the lowest free number, which is this one


def output_of_process() -> UserOutput:
    """Return a UserOutput that writes to descriptors 1 and 2."""
    return UserOutput(
        to_descriptor(1),
        to_descriptor(2),
        are_one=is_same_file(1, 2),
        terminals=(in_place.of_terminal(1), in_place.of_terminal(2)),
    )


def output_of_python() -> UserOutput:
    """Return a UserOutput that writes to sys.stdout and sys.stderr, whatever objects they are."""
    stdout, stderr = sys.stdout, sys.stderr
    terminals = (_terminal(stdout), _terminal(stderr))
    return UserOutput(to_text(stdout), to_text(stderr), are_one=_are_one(stdout, stderr), terminals=terminals)


def _terminal(stream: TextIO) -> InPlace | None:
    descriptor = plain_descriptor(stream)
    return in_place.of_terminal(descriptor) if descriptor is not None else None


def _are_one(stdout: TextIO, stderr: TextIO) -> bool:
    if stdout is stderr:
        return True
    try:
        return is_same_file(stdout.fileno(), stderr.fileno())
    except (AttributeError, OSError, ValueError):
        return False


def _open(path: str) -> int:
    """Open a file for writing.

    A named pipe must have a reader already, because opening would otherwise wait for one.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO and stat.S_ISFIFO(os.stat(path).st_mode):
            raise OSError(f"cannot write {path}: no process is reading this named pipe") from None
        raise
    os.set_blocking(descriptor, True)
    return descriptor
