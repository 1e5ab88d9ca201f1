# SPDX-License-Identifier: Apache-2.0
"""Overlap of NCCL with backward(), as torch's profiler sees it on a GPU."""

import re
import sys
from pathlib import Path

import pytest
import torch
from testkit.launcher import horovodrun

HERE = Path(__file__).parent
PROGRAM = [sys.executable, str(HERE / "with_nccl.py"), str(HERE / "overlap_program.py")]
# With simulated hosts, the engine also takes each rank's GPU for its own.
HOSTS = ("-H", "a:1,b:1")
ENV = {"HOROVOD_SIMULATE_HOSTS": "1"}

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine")


@pytest.mark.parametrize("way", ["hvd", "ddp"])
def test_communication_overlaps_with_backward(way: str) -> None:
    done = horovodrun("-np", "2", *HOSTS, *PROGRAM, way, env=ENV, limit_s=55)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"computing (.*) ms, of these beside NCCL (.*) ms", done.stdout)
    assert len(found) == 2, done.stdout
    for computing, beside in found:
        assert float(beside) > 0.2 * float(computing), done.stdout
