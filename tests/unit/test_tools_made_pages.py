# SPDX-License-Identifier: Apache-2.0
"""The generated documentation pages are up to date."""

import collections
import re
import sys

import pytest
from testkit.places import ROOT
from testkit.processes import run

COUNTED = [
    "tests/parallel/test_allreduce.py",
    "tests/parallel/test_random.py",
    "tests/parallel/torch/test_optimizer.py",
]


@pytest.mark.parametrize(
    ("script", "page"), [("settings-docs", "settings.md"), ("checked-numbers", "checked-numbers.md")]
)
def test_the_page_is_up_to_date(script, page):
    made = run([sys.executable, str(ROOT / "scripts" / script)])
    assert made.returncode == 0, made.stderr
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert text == made.stdout, f"run: scripts/{script} > docs/{page}"


def test_the_page_of_checked_numbers_counts_as_pytest_does():
    """Hypothesis runs several examples within one test, which pytest counts once."""
    collected = run([sys.executable, "-m", "pytest", "--collect-only", "-q", *COUNTED], cwd=ROOT)
    assert collected.returncode == 0, collected.stdout
    runs = collections.Counter(line.partition("[")[0] for line in collected.stdout.splitlines() if "::" in line)
    page = (ROOT / "docs" / "checked-numbers.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| (\d+) \| `(\w+)` in \[([\w/.]+)\]", page)
    counted = {f"{path}::{test}": int(count) for count, test, path in rows if path in COUNTED}
    examples = 20
    expected = {test: runs[test] * (examples if "test_random" in test else 1) for test in counted}
    assert len(counted) >= 15
    assert counted == expected
