# SPDX-License-Identifier: Apache-2.0
"""Nothing that a program starts outlives it, however it ends. For this the standard library is enough."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def interrupt_on_sigterm() -> None:
    """SIGTERM becomes KeyboardInterrupt, so that what a `finally` owes is done."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def end_group(process: subprocess.Popen[Any]) -> None:
    """mpiexec ends its ranks on SIGTERM; SIGKILL is for whoever does not listen."""
    for number, patience_s in ((signal.SIGTERM, 3), (signal.SIGKILL, 3)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
