# SPDX-License-Identifier: Apache-2.0
"""Rules by which a part of the test suite picks its tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Known:
    """A collected test, as far as rules look at it. `world` is "" if the test starts no pool of ranks."""

    file: str  # relative to the repository's root
    name: str  # with its parameters in brackets
    world: str = ""
    is_promise: bool = False  # it has the marker `promise`
    is_slow: bool = False  # it has the marker `slow`: only `make test-long` runs it


@dataclass(frozen=True)
class Pick:
    """Tests of the files that match a pattern.

    Args:
        files: a pattern as for fnmatch, in which `*` also matches slashes.
        names: patterns of the tests' names; empty means all. For a bracket write `?`.
        worlds: the worlds (see tests/harness/worlds.py) whose tests are picked; None means all, and tests without one.
        first_only: pick only the first such test of each file.
        promises: pick tests with the marker `promise`, and no others.
    """

    files: str
    names: Sequence[str] = ()
    worlds: Sequence[str] | None = None
    first_only: bool = False
    promises: bool = False

    def matches(self, test: Known) -> bool:
        if test.is_slow or test.is_promise != self.promises or not fnmatchcase(test.file, self.files):
            return False
        if self.names and not any(fnmatchcase(test.name, pattern) for pattern in self.names):
            return False
        return self.worlds is None or test.world in self.worlds


def picked(picks: Iterable[Pick], tests: Sequence[Known]) -> list[bool]:
    """Return for each test, in the order of collection, whether one of the picks takes it."""
    chosen = [False] * len(tests)
    for pick in picks:
        files_done: set[str] = set()
        for index, test in enumerate(tests):
            if not pick.matches(test) or (pick.first_only and test.file in files_done):
                continue
            files_done.add(test.file)
            chosen[index] = True
    return chosen
