# SPDX-License-Identifier: Apache-2.0
"""GPUs of this machine, found without a framework: by nvidia-smi, or by the driver's files in /proc."""

from __future__ import annotations

import glob
import re
import subprocess
from collections import Counter
from collections.abc import Sequence

from horovod.machine.findings import Finding

_TOOL_LIMIT_S = 5.0
_DRIVER_FILES = "/proc/driver/nvidia/gpus/*/information"
_LISTED = re.compile(r"GPU \d+: (.+?)(?: \(UUID.*)?")
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)


def found() -> list[str]:
    """Return the names of the GPUs.

    A container may see fewer GPUs than its machine has: nvidia-smi takes that into account, the driver's files do not.
    """
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
    """Parse the output of `nvidia-smi -L`."""
    return [match[1] for line in text.splitlines() if (match := _LISTED.fullmatch(line))]


def model(information: str) -> str:
    """Parse the model in a file of the driver."""
    match = _MODEL.search(information)
    return match[1] if match else "unknown"


def summary(names: Sequence[str]) -> str:
    """Return a text such as `2 x NVIDIA H200`."""
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
