# SPDX-License-Identifier: Apache-2.0
"""Programs of their own: through Ray's client, and with a head node that dies."""

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
@pytest.mark.timeout(200)
def test_a_head_that_dies_is_named() -> None:
    started, under_way, later, start = lines_of("headless.py", limit_s=190)
    assert started == "started [1, 1]"
    assert "Ray's head node at " in under_way
    assert "does not answer for " in under_way
    assert "does not answer" in later
    assert start.startswith("start: Ray's head node at ")
