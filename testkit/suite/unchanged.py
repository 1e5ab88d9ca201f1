# SPDX-License-Identifier: Apache-2.0
"""Record of the program with which a part has passed; the part need not run again until that program changes."""

from __future__ import annotations

import hashlib
from pathlib import Path

from testkit.suite.parts import Part


class Passed:
    """Digests of programs, one file for each part."""

    def __init__(self, build: Path) -> None:
        self._build = build

    def has(self, part: Part) -> bool:
        """Return True if the part has passed with the current program."""
        stamp = self._stamp(part)
        return bool(part.program) and stamp.is_file() and stamp.read_text() == self._digest(part)

    def add(self, part: Part) -> None:
        if part.program:
            self._stamp(part).write_text(self._digest(part))

    def _digest(self, part: Part) -> str:
        program = self._build / part.program
        return hashlib.sha256(program.read_bytes()).hexdigest() if program.is_file() else "no such file"

    def _stamp(self, part: Part) -> Path:
        return self._build / "suite" / f"{part.name}.passed"
