# SPDX-License-Identifier: Apache-2.0
"""Collectives on CUDA tensors, on a machine that has a GPU: two and four processes share it."""

import sys
from pathlib import Path

import pytest
import torch
from testkit.launcher import horovodrun

PROGRAM = Path(__file__).parent / "cuda_program.py"

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_collectives_on_cuda_tensors(ranks: int) -> None:
    program = [sys.executable, str(PROGRAM)]
    done = horovodrun("-np", str(ranks), *program, env={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}, limit_s=55)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == ranks, done.stdout
