# SPDX-License-Identifier: Apache-2.0
"""Detection of a GPU without initialising the GPU's driver, so that a rank can still fork."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from testkit.launcher import horovodrun

PROGRAM = [sys.executable, str(Path(__file__).parent / "accelerate_program.py")]

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine"),
    pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="Accelerate is not installed here"),
]


@pytest.mark.parametrize(("what", "variables"), [("visible", {}), ("hidden", {"CUDA_VISIBLE_DEVICES": ""})])
def test_importing_accelerate(what: str, variables: dict[str, str]) -> None:
    done = horovodrun("-np", "2", *PROGRAM, what, env=variables, limit_s=55)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == 2, done.stdout + done.stderr
