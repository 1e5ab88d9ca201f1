# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine, found without any framework: NVIDIA's own tool, else what its driver shows in /proc."""

from __future__ import annotations

import glob
import re
import subprocess
from collections import Counter
from collections.abc import Sequence

from horovod.tools.findings import Finding

_TOOL_LIMIT_S = 5.0
_DRIVER_FILES = "/proc/driver/nvidia/gpus/*/information"
_LISTED = re.compile(r"GPU \d+: (.+?)(?: \(UUID.*)?")
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)


def found() -> list[str]:
    """Their names. A container may see fewer than its machine has: the tool knows, the driver's files do not."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TOOL_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return _shown_by_driver()
    return listed(done.stdout) if done.returncode == 0 else _shown_by_driver()


def listed(text: str) -> list[str]:
    """Out of the answer of `nvidia-smi -L`."""
    return [match[1] for line in text.splitlines() if (match := _LISTED.fullmatch(line))]


def model(information: str) -> str:
    """Out of a driver's file."""
    match = _MODEL.search(information)
    return match[1] if match else "unknown"


def summary(names: Sequence[str]) -> str:
    """`2 x NVIDIA H200`."""
    return ", ".join(f"{count} x {name}" for name, count in Counter(names).items()) or "none"


def finding() -> Finding:
    return Finding("GPUs", summary(found()))


def _shown_by_driver() -> list[str]:
    names = []
    for path in sorted(glob.glob(_DRIVER_FILES)):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                names.append(model(file.read()))
        except OSError:
            names.append("unknown")
    return names
