# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors through the collectives, on a machine that has a GPU: two and four processes share it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).parent / "cuda_program.py"

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_collectives_on_cuda_tensors(ranks: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks), sys.executable, str(PROGRAM)],
        env={**os.environ, "HOROVOD_DYNAMIC_PROCESS_SETS": "1"},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == ranks, done.stdout
