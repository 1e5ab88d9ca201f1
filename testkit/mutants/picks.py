# SPDX-License-Identifier: Apache-2.0
"""Mutants that a seed selects: equal on every machine with these sources and this processor architecture."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

from testkit.mutants import cpp_changes, parts, python_changes
from testkit.mutants.change import Change

Lines = list[list[Change]]  # the changes to each line that can be changed


def all_changes(root: Path) -> dict[str, Lines]:
    """Return the possible changes of the sources below this folder, for the engine and for Python."""
    engine = [one for path in parts.engine_files(root) for one in cpp_changes.changes_in(path, _text(root, path))]
    python = [one for path in parts.python_files() for one in python_changes.changes_in(path, _text(root, path))]
    return {parts.ENGINE: engine, parts.PYTHON: python}


def picked(changes: Mapping[str, Lines], seed: int) -> Iterator[Change]:
    """Yield mutants in the order of this seed: select the part, then a line, then one of the changes to that line.

    Each line is selected at most once. So a line has equal weight whether one or ten changes to it are possible.
    """
    source = random.Random(seed)
    left = {part: list(lines) for part, lines in changes.items() if lines}
    while left:
        part = source.choices(list(left), [parts.WEIGHTS[part] for part in left])[0]
        line = left[part].pop(source.randrange(len(left[part])))
        if not left[part]:
            del left[part]
        yield line[source.randrange(len(line))]


def digest_of_sources(root: Path) -> str:
    """Return a checksum of all files from which mutants are selected."""
    digest = hashlib.sha256()
    for path in (*parts.engine_files(root), *parts.python_files()):
        digest.update(f"{path}\0{_text(root, path)}\0".encode())
    return digest.hexdigest()[:16]


def _text(root: Path, path: str) -> str:
    return (root / path).read_text(encoding="utf-8")
