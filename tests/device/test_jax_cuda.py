# SPDX-License-Identifier: Apache-2.0
"""JAX on a GPU that two processes share, on a machine that has one."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from faultkit.jobs import PlainJob
from testkit.launcher import horovodrun

HERE = Path(__file__).parent
PROGRAM = [sys.executable, str(HERE / "jax_program.py")]
OVER_NCCL = [sys.executable, str(HERE / "with_nccl.py"), str(HERE / "jax_program.py")]
# Without this setting, the first process takes three quarters of the GPU's memory.
SHARED = {"JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine"),
    pytest.mark.skipif(not any(map(importlib.util.find_spec, PLUGINS)), reason="JAX has no plugin for CUDA here"),
    pytest.mark.timeout(75),
]


@pytest.mark.parametrize("transport", ["auto", "ipc", "staged", "nccl"])
@pytest.mark.parametrize("checks", ["operations,forms,in_flight", "transformations,order,sets,training,state"])
def test_jax_on_a_gpu(checks: str, transport: str) -> None:
    env = {**SHARED, "HOROVOD_DYNAMIC_PROCESS_SETS": "1", "HOROVOD_GPU_TRANSPORT": transport}
    env |= {"HOROVOD_LOG_LEVEL": "info"}
    program = OVER_NCCL if transport == "nccl" else PROGRAM
    done = horovodrun("-np", "2", *program, "checks", checks, env=env, limit_s=58)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("CUDA tensors go through NCCL 2." in done.stdout) == (transport == "nccl"), done.stdout
    assert done.stdout.count("all checks passed on gpu") == 2, done.stdout


def test_the_other_rank_hears_of_a_killed_one() -> None:
    with PlainJob([*PROGRAM, "killed"], "a:2", SHARED) as job:
        job.wait(limit_s=55)
        printed = job.printed(0)
    told = re.search(r"lost rank 1 after (.*) s on gpu: ", printed)
    assert told, printed
    assert float(told[1]) < 20, printed
