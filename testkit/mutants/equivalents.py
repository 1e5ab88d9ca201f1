# SPDX-License-Identifier: Apache-2.0
"""Mutants that no test can notice because they do not change the behaviour: a file of them, each with the reason.

An entry is a path (with the number in brackets if the file has several such lines), the line before and after, and the
reason, which ends with the name of a second reader:

    engine/transport/lane.cc (2)
    - if (left < 0) return;
    + if (left <= 0) return;
    = Nothing is done for 0, so returning early changes nothing. Checked by ...
"""

from __future__ import annotations

import re
from pathlib import Path

from testkit.mutants.change import Key

FILE = "tests/mutants-equivalent.txt"
MAX_SHARE = 0.1  # largest share of the judged mutants
_ENTRY = re.compile(r"^(\S+)(?: \((\d+)\))?\n- (.*)\n\+ (.*)\n= (.+(?:\n  .+)*)$", re.MULTILINE)


def read(path: Path) -> dict[Key, str]:
    """Return the reasons, by mutant. Raise ValueError for an entry in another format."""
    reasons: dict[Key, str] = {}
    for block in re.split(r"\n{2,}", path.read_text(encoding="utf-8").strip()) if path.exists() else []:
        lines = "\n".join(line for line in block.splitlines() if not line.startswith("#"))
        entry = _ENTRY.fullmatch(lines)
        if entry:
            reasons[Key(entry[1], entry[3].strip(), entry[4].strip(), int(entry[2] or 1))] = entry[5]
        elif lines:
            raise ValueError(f"{path}: expected a path and the lines -, + and =, not\n{lines}")
    return reasons
