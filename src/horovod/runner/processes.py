# SPDX-License-Identifier: Apache-2.0
"""Worker processes of this machine: each in its own session, so that its whole tree can be ended, and never orphaned.

The guard is a shell that watches a pipe from the launcher. When the launcher is gone (even by `kill -9`) it ends every
process group that was reported to it. Unlike PR_SET_PDEATHSIG it reaches grandchildren, does not depend on which thread
started the worker, and needs no code between fork and exec.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

# Reads "+ group" and "- group" lines until the launcher's end of the pipe closes; then SIGTERM, and SIGKILL after 2 s.
_GUARD_SCRIPT = """
trap '' INT TERM HUP
groups=
while read -r change group; do
  case $change in
    +) groups="$groups $group" ;;
    -) kept=; for g in $groups; do [ "$g" = "$group" ] || kept="$kept $g"; done; groups=$kept ;;
  esac
done
send() { alive=; for g in $groups; do kill -s "$1" -- "-$g" 2>/dev/null && alive=1; done; }
send TERM
for i in 1 2 3 4 5 6 7 8 9 10; do
  send 0; [ -n "$alive" ] || exit 0
  sleep 0.2
done
send KILL
"""


class Guard:
    """Ends the workers if this process cannot do it any more."""

    def __init__(self) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD_SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": os.defpath},
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        self._write(f"+ {group}\n")

    def forget(self, group: int) -> None:
        self._write(f"- {group}\n")

    def close(self) -> None:
        """Whatever is still watched is ended; normally nothing is, and the guard just leaves."""
        assert self._shell.stdin is not None
        with suppress(OSError):
            self._shell.stdin.close()
        self._shell.wait()

    def _write(self, line: str) -> None:
        assert self._shell.stdin is not None
        with suppress(OSError):  # the guard was killed; the job goes on without it
            self._shell.stdin.write(line.encode())
            self._shell.stdin.flush()


class WorkerProcess:
    """One worker: the leader of a process group. Not reaped before `release`, so that its group id stays its own."""

    def __init__(self, rank: int, host: str, command: Sequence[str], env: Mapping[str, str], guard: Guard) -> None:
        self.rank = rank
        self.host = host
        self.exit_code: int | None = None
        self._guard = guard
        self._process = subprocess.Popen(
            list(command),
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._process.pid
        guard.watch(self.pid)
        self.exit_descriptor = _open_pidfd(self.pid)

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        return self._process.stdout, self._process.stderr

    def poll(self) -> int | None:
        """The exit code (128 + n for signal n), None while it runs."""
        if self.exit_code is None:
            status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is not None:
                self.exit_code = status.si_status if status.si_code == os.CLD_EXITED else 128 + status.si_status
        return self.exit_code

    def signal_tree(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def release(self) -> None:
        """Reap it. Its group must be empty or given up."""
        self._guard.forget(self.pid)
        self._process.wait()
        if self.exit_descriptor is not None:
            os.close(self.exit_descriptor)
            self.exit_descriptor = None


def describe_exit(exit_code: int) -> str:
    if exit_code <= 128:
        return f"exit code {exit_code}"
    number = exit_code - 128
    try:
        return f"killed by signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"exit code {exit_code}"


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None  # an old kernel or a strict sandbox: exits are then found by polling
