# SPDX-License-Identifier: Apache-2.0
"""Run of one command with a time limit, after which no process is left, whatever a mutant did."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from testkit.families import Mark, kill_family
from testkit.lifetimes import die_with_parent
from testkit.mutants.verdicts import Ended

_LAST_BYTES = 200_000
NO_TESTS = 5  # pytest's exit code
_MARK = "KHOROVOD_MUTANT_RUN"


@dataclass(frozen=True)
class Run:
    """Outcome of a command: how it ended, how long it took and the end of its output.

    Args:
        code: The exit code, or the signal as a negative number. None if the command was killed at its limit.
    """

    ended: Ended
    took_s: float
    printed: str
    code: int | None = 0


def run(
    command: Sequence[str], folder: Path, env: Mapping[str, str], limit_s: float, passes: Collection[int] = (0,)
) -> Run:
    """Run a command to its end or to its limit, then kill all processes that it has started.

    Args:
        passes: The exit codes that count as passed.
    """
    mark = Mark(_MARK)
    began = time.monotonic()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **env, mark.name: mark.value},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_prepare,
        )
        code: int | None
        try:
            code = process.wait(max(0.0, limit_s))
            ended = Ended.PASSED if code in passes else Ended.FAILED
        except subprocess.TimeoutExpired:
            code, ended = None, Ended.HANGS
        took_s = time.monotonic() - began
        _kill_all(process, mark)
        size = os.fstat(log.fileno()).st_size
        printed = os.pread(log.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES)).decode(errors="replace")
    return Run(ended, took_s, printed, code)


def _prepare() -> None:
    """Disable core files. If memory gets short, make the kernel kill this run first instead of its parent."""
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _kill_all(process: subprocess.Popen[bytes], mark: Mark) -> None:
    if process.poll() is None:
        kill_family(process.pid)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for left in mark.processes():
        with suppress(psutil.NoSuchProcess):
            left.kill()
