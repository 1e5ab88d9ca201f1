# SPDX-License-Identifier: Apache-2.0
"""Test runs that judge a mutant, in their order. Commands run in the root of a tree and use the tree's package."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testkit.mutants import parts
from testkit.mutants.change import Change
from testkit.mutants.verdicts import Verdict

_ENGINE_TESTS = ("build/engine/engine_tests", "--abort-after=1", "--no-version=true", "--duration=false")
_PYTEST = (
    *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "testkit.mutants.provenance"),
    "--hypothesis-seed=0",  # makes the control and each mutant run the same examples
    # These tests read the text of the mutated file, which must not count as noticing a mutant.
    *("--ignore=tests/unit/test_mutants.py", "--ignore=tests/unit/test_mutants_changes.py"),
)
_QUICK_FOLDERS = ("tests/unit", "tests/parallel", "tests/integration", "tests/faults")
_RANK_TESTS = ("tests/parallel/test_*.py", "-k", "shm2")
# Related tests run first, because test files that include or import the mutated file notice most mistakes.
RELATED = "<related>"  # replaced by the options that leave out all other files
OTHERS = "<others>"  # replaced by the options that leave out the related files


@dataclass(frozen=True)
class Judge:
    """Run of tests. `command` may contain globs, which are expanded in the tree, and RELATED or OTHERS.

    Args:
        takes: The parts whose mutants it judges.
        only_ranks: Leave out mutants in modules that ranks of the NumPy API do not run.
        control: The name of the judge whose control run also serves this one; empty for its own control run.
    """

    name: str
    noticed_by: Verdict
    command: tuple[str, ...]
    takes: tuple[str, ...]
    only_ranks: bool = False
    control: str = ""

    def judges(self, change: Change) -> bool:
        part = parts.ENGINE if change.path.startswith("engine/") else parts.PYTHON
        return part in self.takes and (not self.only_ranks or parts.is_used_by_ranks(change.path))


def _unit_tests(name: str, command: tuple[str, ...], part: str) -> tuple[Judge, Judge]:
    return (
        Judge(f"related {name}", Verdict.UNIT, (*command, RELATED), (part,), control=name),
        Judge(name, Verdict.UNIT, (*command, OTHERS), (part,)),
    )


_BOTH = (parts.ENGINE, parts.PYTHON)
_ENGINE = _unit_tests("engine unit tests", _ENGINE_TESTS, parts.ENGINE)
_PYTHON = _unit_tests("Python unit tests", (*_PYTEST, "tests/unit"), parts.PYTHON)
JUDGES = {
    "full": (*_ENGINE, *_PYTHON, Judge("rank tests", Verdict.RANKS, (*_PYTEST, *_RANK_TESTS), _BOTH, only_ranks=True)),
    "quick": (*_ENGINE, Judge("make test", Verdict.SELECTION, (*_PYTEST, "--selection=test", *_QUICK_FOLDERS), _BOTH)),
}


def command_of(judge: Judge, root: Path, change: Change | None = None) -> list[str]:
    """Return the judge's command for a mutant, or for the control if `change` is None. Empty if no test is related."""
    related = related_tests(root, change.path) if change is not None else []
    words: list[str] = []
    for word in judge.command:
        if word == RELATED and not related:
            return []
        if word in (RELATED, OTHERS):
            words += _only(related, root) if word == RELATED else _without(related)
        elif "*" in word:
            words += [str(path.relative_to(root)) for path in sorted(root.glob(word))]
        else:
            words.append(word)
    return words


def _only(tests: Sequence[str], root: Path) -> list[str]:
    """Return the options with which doctest or pytest runs only these test files."""
    if tests[0].endswith(".cc"):
        return [f"--source-file={','.join('*' + test for test in tests)}"]
    # Leave out the others instead of naming these, because pytest fails for a named file whose framework is missing.
    files = [str(path.relative_to(root)) for path in sorted(Path(root, tests[0]).parent.glob("test_*.py"))]
    return _without([file for file in files if file not in tests])


def _without(tests: Sequence[str]) -> list[str]:
    """Return the options with which doctest or pytest leaves out these test files."""
    if tests and tests[0].endswith(".cc"):
        return [f"--source-file-exclude={','.join('*' + test for test in tests)}"]
    return [f"--ignore={test}" for test in tests]


def related_tests(root: Path, path: str) -> list[str]:
    """Return the unit test files that include or import this file."""
    if path.startswith("engine/"):
        header = re.escape(str(Path(path).with_suffix(".h").relative_to("engine")))
        pattern, tests = rf'^#include "{header}"', "engine/tests/*_test.cc"
    else:
        module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        package, _, name = map(re.escape, module.rpartition("."))
        pattern, tests = rf"^from {package}(\.{name} import|\ import .*\b{name}\b)", "tests/unit/test_*.py"
    found = [test for test in root.glob(tests) if re.search(pattern, test.read_text(encoding="utf-8"), re.MULTILINE)]
    return [str(test.relative_to(root)) for test in sorted(found)]


def first_failure(printed: str) -> str:
    """Return the first failed test as doctest or pytest names it; the last line of the output if none is named."""
    for pattern in (r"^(?:FAILED|ERROR) (\S+)", r"^TEST CASE:\s+(.*)", r"^'(.*)' takes more than"):
        if match := re.search(pattern, printed, re.MULTILINE):
            return match[1].strip()
    lines: Sequence[str] = printed.strip().splitlines()
    return lines[-1][:200] if lines else ""
