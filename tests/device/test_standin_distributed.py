# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over the horovod backend on tensors of a device, without one: see test_standin.py."""

import sys
from pathlib import Path

import pytest
from testkit.launcher import horovodrun

PROGRAM = [sys.executable, str(Path(__file__).parent / "standin" / "torch_program.py")]

pytestmark = pytest.mark.timeout(180)  # the first of them compiles the stand-in
pytest.importorskip("torch")


@pytest.mark.parametrize("transport", ["auto", "staged"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_collective(driver, ranks, transport):
    env = {**driver, "HOROVOD_GPU_TRANSPORT": transport, "STANDIN_DELAY_US": "200", "OMP_NUM_THREADS": "1"}
    done = horovodrun("-np", str(ranks), *PROGRAM, env=env, limit_s=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == ranks, done.stdout + done.stderr
