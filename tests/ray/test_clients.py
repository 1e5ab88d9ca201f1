# SPDX-License-Identifier: Apache-2.0
"""Separate programs: through Ray's client, and with a head node that dies."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


def lines_of(program: str, *arguments: str, limit_s: float) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program), *arguments],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.timeout(150)
def test_through_rays_client(client_address: str) -> None:
    static, failed, elastic = lines_of("client.py", client_address, limit_s=140)
    assert static == "static [2.0, 2.0] [0, 1]"
    assert failed.startswith("failed rank 1 on node ")
    assert elastic == "elastic [3.0, 3.0]"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_head_that_dies_is_named_and_nothing_is_left() -> None:
    """Check that two jobs end without their programs' help when the head dies, and so do their workers."""
    static, elastic, left = lines_of("headless.py", limit_s=390)
    for kind, line in (("static", static), ("elastic", elastic)):
        match = re.fullmatch(rf"{kind} ended with 0 after (\d+) s: (.*)", line)
        assert match, line
        assert int(match[1]) < 60
        under_way, later, start = ast.literal_eval(match[2])
        for told in (under_way, later, start):
            assert told.startswith("refused Ray's head node at "), told
        assert re.search(r"does not answer for \d+ s", under_way)
    assert left.startswith("0 workers left"), left
