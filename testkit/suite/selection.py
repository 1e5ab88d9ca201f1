# SPDX-License-Identifier: Apache-2.0
"""Rules by which a part of the test suite selects its tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Known:
    """Properties of a collected test that rules use. `world` is "" if the test starts no pool of ranks."""

    file: str  # path relative to the repository's root
    name: str  # name with its parameters in brackets
    world: str = ""
    is_promise: bool = False  # True if it has the marker `promise`
    is_slow: bool = False  # True if it has the marker `slow`, so that only `make test-long` runs it


@dataclass(frozen=True)
class Pick:
    """Tests of the files that match a pattern.

    Args:
        files: A pattern as for fnmatch, in which `*` also matches slashes.
        names: Patterns of the tests' names; empty means all. Write `?` for a bracket.
        worlds: The worlds (see tests/harness/worlds.py) of the tests; None means all tests, also those without a world.
        first_only: Select only the first matching test of each file.
        promises: Select only tests with the marker `promise`.
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
    """Return for each test, in the order of collection, True if one of the picks selects it."""
    chosen = [False] * len(tests)
    for pick in picks:
        files_done: set[str] = set()
        for index, test in enumerate(tests):
            if not pick.matches(test) or (pick.first_only and test.file in files_done):
                continue
            files_done.add(test.file)
            chosen[index] = True
    return chosen


@dataclass(frozen=True)
class OldVersion:
    """Tests for the oldest version of a framework, which runs the code that other parts test on the newest version.

    Of each test function they are the first case in each mode, because further cases differ in what is no framework's:
    data types, reductions, algorithms.

    Args:
        once_in: A pattern of the files whose functions have one case in each mode; others keep all cases.
        modes: Words of cases that run different code of the framework.
        worlds: The worlds that are left out.
        left_out: Tests that use nothing that depends on the version.
    """

    once_in: str
    modes: Sequence[str]
    worlds: Sequence[str]
    left_out: Sequence[Pick]

    def picked(self, tests: Sequence[Known]) -> list[bool]:
        """Return for each test, in the order of collection, True if it is selected."""
        seen: set[tuple[str, str, frozenset[str]]] = set()
        chosen = []
        for test in tests:
            function, _, case = test.name.partition("[")
            key = (test.file, function, frozenset(self.modes) & frozenset(case.rstrip("]").split("-")))
            is_left_out = test.is_slow or test.world in self.worlds or any(pick.matches(test) for pick in self.left_out)
            chosen.append(not is_left_out and not (fnmatchcase(test.file, self.once_in) and key in seen))
            if not is_left_out:
                seen.add(key)
        return chosen
