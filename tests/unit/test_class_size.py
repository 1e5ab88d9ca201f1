# SPDX-License-Identifier: Apache-2.0
"""scripts/check-class-size: which classes it finds too large, and what it says about its list of exceptions."""

import subprocess
import sys
from pathlib import Path

import pytest
from testkit.places import ROOT

SCRIPT = ROOT / "scripts" / "check-class-size"


def methods(first: int, count: int) -> str:
    return "".join(f"    def m{number}(self): ...\n" for number in range(first, first + count))


def fields(count: int) -> str:
    return "    def __init__(self):\n" + "".join(f"        self.f{number} = 0\n" for number in range(count))


@pytest.mark.parametrize(
    ("text", "exception", "found"),
    [
        (f"class A:\n{methods(0, 25)}", "", None),
        (f"class A:\n{methods(0, 26)}", "", "a.py:1: A has 26 methods and 0 fields"),
        (f"class A:\n{fields(16)}", "", None),
        (f"class A:\n{fields(17)}", "", "a.py:1: A has 1 methods and 17 fields"),
        (f"class _B:\n{methods(0, 20)}class A(_B):\n{methods(20, 6)}", "", "a.py:22: A has 26 methods"),
        (f"class B:\n{methods(0, 20)}class A(B):\n{methods(20, 6)}", "", None),
        (f"class A:\n{methods(0, 26)}", "a.py:A 26 methods, 0 fields: a framework's API", None),
        (f"class A:\n{methods(0, 27)}", "a.py:A 26 methods, 0 fields: a framework's API", "a.py:1: A has 27 methods"),
        (f"class A:\n{methods(0, 25)}", "a.py:A 26 methods, 0 fields: a framework's API", "is small enough now"),
        (f"class A:\n{methods(0, 26)}", "a.py:A 26 methods, 0 fields:", "not `FILE:CLASS N methods, N fields: reason`"),
        ("", "a.py:A 26 methods, 0 fields: a framework's API", "there is no class a.py:A"),
    ],
)
def test_classes_over_the_limits_need_an_exception_with_a_reason(
    tmp_path: Path, text: str, exception: str, found: str | None
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "a.py").write_text(text)
    (tmp_path / "large.txt").write_text(f"# Classes that may be larger.\n{exception}\n")
    command = [sys.executable, SCRIPT, tmp_path / "package", tmp_path / "large.txt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    assert done.returncode == (0 if found is None else 1), done.stdout
    assert (found or "") in done.stdout
    assert bool(done.stdout) is (found is not None)
