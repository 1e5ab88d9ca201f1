# SPDX-License-Identifier: Apache-2.0
"""Mutant: one changed line of a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Edit(NamedTuple):
    """Replacement of the columns from `start` to `end` of a line by `text`."""

    line: int  # counted from 1
    start: int
    end: int
    text: str
    operator: str


class Key(NamedTuple):
    """Identity of a mutant that stays valid when lines move: its file, and the line before and after."""

    path: str
    before: str
    after: str
    occurrence: int  # number of the line among those with this text in the file, counted from 1


@dataclass(frozen=True)
class Change:
    """Mutant. `line` counts from 1; `before` and `after` are whole lines without line ends."""

    path: str
    line: int
    before: str
    after: str
    operator: str
    occurrence: int = 1

    @property
    def key(self) -> Key:
        return Key(self.path, self.before.strip(), self.after.strip(), self.occurrence)

    def apply_to(self, text: str) -> str:
        """Return the file's text with this line changed. Raise ValueError if the line differs from `before`."""
        lines = text.splitlines(keepends=True)
        found = lines[self.line - 1] if self.line <= len(lines) else ""
        if found.rstrip("\r\n") != self.before:
            raise ValueError(f"{self.path}:{self.line} is not {self.before!r}")
        lines[self.line - 1] = self.after + found[len(self.before) :]
        return "".join(lines)


def changes_of(path: str, text: str, edits: Iterable[Edit]) -> list[list[Change]]:
    """Return the changes that these edits make, one list for each line that can be changed."""
    lines = text.splitlines()
    seen: Counter[str] = Counter()
    occurrences = []
    for line in lines:
        seen[line.strip()] += 1
        occurrences.append(seen[line.strip()])
    found: dict[int, list[Change]] = {}
    for edit in edits:
        before = lines[edit.line - 1]
        after = before[: edit.start] + edit.text + before[edit.end :]
        change = Change(path, edit.line, before, after, edit.operator, occurrences[edit.line - 1])
        if after != before:
            found.setdefault(edit.line, []).append(change)
    return [found[line] for line in sorted(found)]
