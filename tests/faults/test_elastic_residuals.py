# SPDX-License-Identifier: Apache-2.0
"""An elastic job of two hosts with int8 and top-k: a worker is lost, and another one joins."""

import os
import signal

import pytest
from faultkit.elastic import OfferedHosts
from faultkit.jobs import program
from faultkit.newcomers import hold_back, let_come
from faultkit.stepping import SteppingJob

FLAGS = ("--min-np", "2", "--max-np", "4")


@pytest.mark.timeout(240)  # five processes import torch, four of them at the same time
def test_residuals_move_to_the_ranks_that_own_them_after_a_loss_and_after_a_worker_has_joined(tmp_path):
    hold_back(tmp_path, 4)
    offer = OfferedHosts(tmp_path, "left:2", "right:2")
    env = {"OMP_NUM_THREADS": "1", "HOROVOD_SIMULATE_HOSTS": "1", "HOROVOD_LOG_LEVEL": "info"}
    command = program("elastic_residuals", str(tmp_path / "stop"))
    with SteppingJob(command, 4, (*FLAGS, *offer.flags), env) as job:
        job.stop = tmp_path / "stop"
        first = job.stepped(0, 4)
        os.kill(first[1]["pid"], signal.SIGKILL)
        # One rank is left on the host of worker 1, so each host has one share, which belongs to its first rank.
        fewer = job.stepped(1, 3)
        assert set(fewer) == {0, 2, 3}
        assert min(fewer[3]["before"]) > 0
        assert fewer[3]["kept"] == [0, 0]  # its residuals belong to worker 2 now
        let_come(tmp_path, 4)
        more = job.stepped(2, 4)
        assert set(more) == {0, 2, 3, 4}
        assert min(min(more[birth]["kept"]) for birth in more) > 0
        for earlier, later in ((first, fewer), (fewer, more)):
            assert all(one["same"] for one in later.values())
            for one, other in zip(earlier[0]["losses"], later[0]["losses"], strict=True):
                assert other < one
        job.finish(4)
        shown = job.printed_by_all()
    for method in ("int8", "topk"):
        assert f"{method}: the ranks or hosts have changed." in shown
    assert "values come from other ranks of the host and 0 begin with zero" in shown
    assert "0 values come from other ranks of the host and 8192 begin with zero" in shown
