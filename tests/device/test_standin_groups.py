# SPDX-License-Identifier: Apache-2.0
"""Process groups of torch.distributed over NCCL without a GPU: stand-ins for the driver and for NCCL.

What a process has launched first is done first in the stand-in, whatever the communicator: ranks that launch in
different orders wait for each other without end.
"""

import re
import sys

import pytest
from devicekit.standins import LATE, STANDIN
from faultkit.jobs import PlainJob
from testkit.launcher import horovodrun
from testkit.processes import wait_for_all

pytestmark = pytest.mark.timeout(180)  # the first of them compiles the stand-ins
pytest.importorskip("torch")

GROUPS = [sys.executable, str(STANDIN / "groups_program.py")]
CHECKS = [sys.executable, str(STANDIN / "torch_program.py"), "nccl"]
# Launches of different worlds overtake each other where nobody sees to their order.
SETTINGS = {**LATE, "STANDIN_NCCL_PAUSE_US": "2000", "OMP_NUM_THREADS": "1", "HOROVOD_GPU_TRANSPORT": "nccl"}


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_collective(nccl, ranks):
    done = horovodrun("-np", str(ranks), *CHECKS, env={**nccl, **SETTINGS}, limit_s=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all checks passed") == ranks, done.stdout + done.stderr


@pytest.mark.parametrize(("ranks", "seed"), [(2, 0), (2, 1), (4, 2), (4, 3)])
def test_groups_that_overlap_launch_in_the_order_of_the_program(nccl, ranks, seed):
    done = horovodrun("-np", str(ranks), *GROUPS, "orders", str(seed), env={**nccl, **SETTINGS}, limit_s=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all in order") == ranks, done.stdout + done.stderr


def test_a_killed_rank_keeps_no_group_waiting(nccl):
    with PlainJob([*GROUPS, "loss"], "a:3", {**nccl, **SETTINGS}) as job:
        survivors = [job.processes[0], job.processes[2]]
        wait_for_all(survivors, 60)
        printed = {rank: job.printed(rank) for rank in (0, 2)}
    for text in printed.values():
        found = re.search(r"heard in (.*) s", text)
        assert found, printed
        assert float(found[1]) < 10, printed
        assert "communicators left: 0" in text, printed
