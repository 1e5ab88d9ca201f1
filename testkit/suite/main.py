# SPDX-License-Identifier: Apache-2.0
"""suite test | all: run the parts of `make test`, or everything that CI holds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from testkit.suite.parts import REST, TEST, Part
from testkit.suite.running import Result, Suite
from testkit.suite.summary import summary, titles

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str]) -> int:
    if list(arguments) not in (["test"], ["all"]):
        print(__doc__, file=sys.stderr)
        return 2
    runs_all = list(arguments) == ["all"]
    os.chdir(ROOT)
    began = time.monotonic()
    results = _run(TEST)
    if runs_all and not any(result.code != 0 for result in results):
        results += _run(REST)
    elif runs_all:
        results += [Result(part) for part in REST]
    elsewhere = {"hours of repetitions and whole programs": "make test-long"}
    if not runs_all:
        elsewhere = {"all of the following": "make test-all"} | titles(REST) | elsewhere
    print("\n" + summary(results, elsewhere, time.monotonic() - began), flush=True)
    return 1 if any(result.code != 0 for result in results) else 0


def _run(parts: Sequence[Part]) -> list[Result]:
    build = Path(os.environ.get("BUILD", ROOT / "build"))
    python = Path(os.environ.get("VENV", ROOT / ".venv")) / "bin" / "python"
    return Suite(parts, build, python).run()
