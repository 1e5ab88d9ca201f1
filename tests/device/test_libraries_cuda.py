# SPDX-License-Identifier: Apache-2.0
"""Lightning and Accelerate over the horovod backend, on a GPU that two processes share.

The same program also runs on the processor.
"""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from testkit.launcher import horovodrun
from testkit.long import in_long

HERE = Path(__file__).parent
PROGRAM = str(HERE / "libraries_program.py")
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine")

pytestmark = pytest.mark.timeout(110)


@pytest.mark.parametrize(
    "way", [in_long("cpu"), pytest.param("auto", marks=ON_GPU), pytest.param("nccl", marks=ON_GPU)]
)
@pytest.mark.parametrize("library", ["lightning", "accelerate"])
def test_two_ranks_train_as_one(library: str, way: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed here")
    program = [str(HERE / "with_nccl.py"), PROGRAM] if way == "nccl" else [PROGRAM]
    kind = "cpu" if way == "cpu" else "cuda"
    env = {"OMP_NUM_THREADS": "1", "HOROVOD_LOG_LEVEL": "info"}
    done = horovodrun("-np", "2", sys.executable, *program, library, kind, env=env, limit_s=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("CUDA tensors go through NCCL 2." in done.stdout + done.stderr) == (way == "nccl"), done.stdout
    assert done.stdout.count("all checks passed") == 2, done.stdout
