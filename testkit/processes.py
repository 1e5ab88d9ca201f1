# SPDX-License-Identifier: Apache-2.0
"""Processes with a deadline and a log, which leave no descendants behind.

If a process exceeds its deadline, the error contains its output and the stacks of all its ranks.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from testkit.lifetimes import die_with_parent, end_group
from testkit.speed import patience

_TRANSCRIPT_BYTES = 6000
_alive: weakref.WeakSet[Process] = weakref.WeakSet()
_ended: list[tuple[str, str]] = []  # command and output of processes that ended since forget_transcripts()


def forget_transcripts() -> None:
    """Clear the list of the output of processes that have ended."""
    _ended.clear()


def transcripts(max_bytes: int) -> str:
    """Return what each process has printed since `forget_transcripts`; only the last `max_bytes` characters."""
    running = [(process.title(), process.printed(_TRANSCRIPT_BYTES)) for process in _alive]
    shown = [f"--- {title}\n{text}" for title, text in [*_ended, *running] if text]
    return "\n".join(shown)[-max_bytes:]


class Process(subprocess.Popen[Any]):
    """Process that writes to its own log, so that no pipe blocks it; the end of a `with` block kills it.

    `env` is added to this process's environment. `options` are those of subprocess.Popen, such as pipes. Timeouts are
    scaled for this machine.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None, **options: Any) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": self._log, "stderr": self._log}
        try:
            super().__init__(command, env={**os.environ, **(env or {})}, **(streams | options))
        except OSError:
            self._log.close()
            raise
        _alive.add(self)

    def wait(self, timeout: float | None = None) -> int:
        return super().wait(None if timeout is None else patience(timeout))

    def wait_until(self, moment: float) -> int:
        """Wait until a time of the monotonic clock, which is not scaled."""
        return super().wait(max(0.0, moment - time.monotonic()))

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        return super().communicate(input, None if timeout is None else patience(timeout))

    def printed(self, most: int | None = None) -> str:
        """Return the contents of the log so far; with `most`, only that many bytes at its end."""
        size = self.log_size()
        start = 0 if most is None else max(0, size - most)
        return os.pread(self._log.fileno(), size - start, start).decode(errors="replace")

    def log_size(self) -> int:
        return os.fstat(self._log.fileno()).st_size

    def title(self) -> str:
        command = self.args if isinstance(self.args, (list, tuple)) else [self.args]
        return f"process {self.pid}, exit code {self.returncode}: {' '.join(map(str, command))[:300]}"

    def account(self) -> str:
        """Return the output and, while the process runs, the stacks of its ranks."""
        # Imported late, because benchmarks also start processes where Horovod is not installed.
        from testkit.stacks import stacks_below

        where = [stacks_below(self.pid)] if self.poll() is None else []
        return "\n".join([self.printed(), *where])

    def end(self) -> None:
        """Kill the process and its descendants, if they still run. Safe to call twice."""
        if self.poll() is None:
            from testkit.families import kill_family

            kill_family(self.pid)
        super().__exit__(None, None, None)  # closes pipes and waits
        if self in _alive:
            _alive.discard(self)
            _ended.append((self.title(), self.printed(_TRANSCRIPT_BYTES)))
        self._log.close()

    def __exit__(self, *_: object) -> None:
        self.end()


class Group(Process):
    """Process in its own session, which the kernel terminates when this process ends, even by SIGKILL.

    At its end the whole session gets SIGTERM first, because mpiexec and similar programs need to clean up.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(command, env, start_new_session=True, preexec_fn=die_with_parent, **options)

    def end(self) -> None:
        end_group(self)
        super().end()


def wait_for_all(processes: Sequence[Process], limit_s: float) -> list[int]:
    """Return the exit codes; raise AssertionError with all accounts if a process does not end in time."""
    limit_s = patience(limit_s)
    give_up = time.monotonic() + limit_s
    for index, process in enumerate(processes):
        try:
            process.wait_until(give_up)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"process {index} still runs after {limit_s:g} s\n{accounts(processes)}") from None
    return [process.returncode for process in processes]


def accounts(processes: Iterable[Process]) -> str:
    return "\n".join(f"--- process {index}:\n{process.account()}" for index, process in enumerate(processes))


def run(
    command: Sequence[str], env: Mapping[str, str] | None = None, limit_s: float = 30, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return its exit code and output. Raise AssertionError if that takes too long."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
    with Process(command, env, **(pipes | options)) as process:
        try:
            stdout, stderr = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as late:
            shown = [part.decode(errors="replace") for part in (late.stdout, late.stderr) if part]
            raise AssertionError(
                "\n".join([f"{' '.join(command)[:500]} still runs after {late.timeout:g} s", *shown, process.account()])
            ) from None
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
