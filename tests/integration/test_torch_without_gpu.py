# SPDX-License-Identifier: Apache-2.0
"""The launcher and the benchmark report a missing GPU to programs that need one."""

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from testkit.launcher import horovodrun, python
from testkit.processes import run

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"
WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}
# The first applies if PyTorch is built for CPUs; otherwise the driver is missing or the GPUs are hidden.
REMEDIES = "this PyTorch is built for CPUs alone|install NVIDIA's driver on|this rank sees no GPU"


def test_the_summary_of_a_rank_that_asks_for_a_gpu_says_what_to_do():
    program = python("import torch\ntorch.cuda.set_device(0)")
    done = horovodrun("-np", "1", *program, env=WITHOUT_GPU, limit_s=60)
    assert done.returncode == 1
    assert re.search(rf"^  what to do: ({REMEDIES})", done.stderr, re.MULTILINE), done.stderr


def test_the_gpu_benchmark_ends_with_one_line():
    done = run([sys.executable, str(BENCHMARK)], env=WITHOUT_GPU, limit_s=60)
    assert re.fullmatch(r"this machine has (no GPU and driver|a PyTorch) .* \(see `hvd doctor`\)\n", done.stderr)
    assert (done.stdout, done.returncode) == ("", 1)
