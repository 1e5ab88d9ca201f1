# SPDX-License-Identifier: Apache-2.0
"""Where the parts of this repository are, and how the processes that are started here find its modules."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
EXAMPLES = ROOT / "examples"
BENCHMARKS = ROOT / "benchmarks"


def python_path(*folders: Path, before: str | None = None) -> str:
    """The PYTHONPATH of a child: these folders, then `before`, by default what this process was started with."""
    inherited = os.environ.get("PYTHONPATH") if before is None else before
    return os.pathsep.join([*map(str, folders), *filter(None, [inherited])])
