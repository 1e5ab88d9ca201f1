# SPDX-License-Identifier: Apache-2.0
"""Jobs started by horovodrun."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from testkit.processes import run
from testkit.started import count_ranks

_MAX_RANKS = 100  # larger values are not counted, because tests expect horovodrun to refuse such jobs

HOROVODRUN = [sys.executable, "-m", "horovod.launcher.launch"]


def python(source: str) -> list[str]:
    """Return the command that runs a program given as text."""
    return [sys.executable, "-c", source]


def horovodrun(
    *words: str, env: Mapping[str, str] | None = None, limit_s: float = 30, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a job to its end; return its exit code and output."""
    if "-np" in words[:-1] and (size := words[words.index("-np") + 1]).isdigit() and int(size) <= _MAX_RANKS:
        count_ranks(int(size))
    return run([*HOROVODRUN, *words], env, limit_s, **options)


def lines_by_rank(text: str, stream: str = "stdout") -> dict[int, list[str]]:
    """Return the lines that each rank has printed, from horovodrun's output."""
    found: dict[int, list[str]] = {}
    for line in text.splitlines():
        if match := re.match(rf"\[(\d+)\]<{stream}>:(.*)", line):
            found.setdefault(int(match[1]), []).append(match[2])
    return found
