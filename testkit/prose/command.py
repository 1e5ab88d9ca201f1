# SPDX-License-Identifier: Apache-2.0
"""Check the prose of all sources; see scripts/check-prose."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from testkit.places import ROOT
from testkit.prose import passages, rules

FOLDERS = ("engine", "src", "tests", "testkit", "benchmarks", "examples", "scripts")
_PYTHON, _CPP = (".py", ".pyi"), (".cc", ".h")


def check(root: Path = ROOT, write: bool = False) -> int:
    """Print the faults of all sources, and return 1 if there are any.

    Args:
        root: Folder with the sources, a git repository.
        write: Remove exceptions that no longer match a name, instead of reporting them.
    """
    excepted, found = set(rules.excepted_names()), 0
    used: set[str] = set()
    for path in _sources(root):
        text = (root / path).read_text(encoding="utf-8")
        for line, fault in faults_of(path, text, excepted, used):
            print(f"{path}:{line}: {fault}")
            found += 1
    if write:
        lines = rules.EXCEPTIONS.read_text().splitlines(keepends=True)
        kept = [line for line in lines if line.strip() not in excepted - used]
        rules.EXCEPTIONS.write_text("".join(kept), encoding="utf-8")
        return int(found > 0)
    for name in sorted(excepted - used):
        print(f"{rules.EXCEPTIONS.name}: no method is called {name}: scripts/check-prose --write")
        found += 1
    return int(found > 0)


def faults_of(path: str, text: str, excepted: set[str], used: set[str]) -> Iterator[tuple[int, str]]:
    """Yield line and description of each fault of a file, and add the exceptions that it needs to `used`."""
    is_cpp = path.endswith(_CPP)
    for passage in passages.cpp_passages(text) if is_cpp else passages.python_passages(text):
        for fault in rules.faults_of_passage(passage.text):
            yield passage.line, f"{passage.text[:60]!r} {fault}"
    for name in passages.cpp_methods(text) if is_cpp else passages.python_methods(text):
        fault_or_none = rules.fault_of_name(name.bare)
        if fault_or_none and name.qualified in excepted:
            used.add(name.qualified)
        elif fault_or_none:
            yield name.line, f"the name {name.qualified} {fault_or_none}"


def _sources(root: Path) -> Iterator[str]:
    """Yield the paths of all Python and C++ sources that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    for path in sorted(set(listed.stdout.splitlines())):
        if (root / path).is_file() and (path.endswith(_PYTHON + _CPP) or _is_python_script(root / path)):
            yield path


def _is_python_script(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline(64)
    return first.startswith(b"#!") and b"python" in first
