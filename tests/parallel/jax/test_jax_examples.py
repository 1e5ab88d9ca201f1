# SPDX-License-Identifier: Apache-2.0
"""The example of compressed gradients runs briefly on two ranks and learns."""

import re
import sys

import pytest
from testkit import places
from testkit.launcher import horovodrun


@pytest.mark.timeout(150)
def test_compressed_gradients():
    program = places.EXAMPLES / "jax" / "compressed_gradients.py"
    words = ["-np", "2", sys.executable, str(program), "--method", "powersgd", "--steps", "40"]
    done = horovodrun(*words, env={"OMP_NUM_THREADS": "1"}, limit_s=140)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = re.findall(r"(\w+) +loss ([\d.]+) → ([\d.]+)", done.stdout)
    assert [method for method, _, _ in losses] == ["dense", "powersgd"]
    assert all(float(last) < float(first) for _, first, last in losses)
