# SPDX-License-Identifier: Apache-2.0
"""Guarantees that no child process outlives the program, however it ends. Needs only the standard library."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Make the kernel terminate this process when its parent ends, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def interrupt_on_sigterm() -> None:
    """Turn SIGTERM into KeyboardInterrupt, so that `finally` blocks run."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def end_group(process: subprocess.Popen[Any]) -> None:
    """End a process group by SIGTERM, on which mpiexec ends its ranks; after at most 3 s by SIGKILL."""
    for number, patience_s in ((signal.SIGTERM, 3), (signal.SIGKILL, 3)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
