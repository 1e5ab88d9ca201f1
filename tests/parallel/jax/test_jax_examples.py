# SPDX-License-Identifier: Apache-2.0
"""The examples of compressed gradients and of DiLoCo run briefly on two ranks and learn."""

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


@pytest.mark.timeout(150)
def test_diloco():
    program = places.EXAMPLES / "jax" / "diloco.py"
    words = ["-np", "2", sys.executable, str(program), "--steps", "60", "--wire", "int4"]
    done = horovodrun(*words, env={"OMP_NUM_THREADS": "1"}, limit_s=140)
    assert done.returncode == 0, done.stdout + done.stderr
    first, last = re.findall(r"loss ([\d.]+) → ([\d.]+) after 60 steps", done.stdout)[0]
    assert float(last) < float(first)
