# SPDX-License-Identifier: Apache-2.0
"""Paths of this repository's parts, and the PYTHONPATH with which child processes import its modules."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
EXAMPLES = ROOT / "examples"
BENCHMARKS = ROOT / "benchmarks"


def python_path(*folders: Path, before: str | None = None) -> str:
    """Return the PYTHONPATH of a child: these folders, then `before` (default: this process's own PYTHONPATH)."""
    inherited = os.environ.get("PYTHONPATH") if before is None else before
    return os.pathsep.join([*map(str, folders), *filter(None, [inherited])])
