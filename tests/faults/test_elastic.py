# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs of real processes: workers are killed, added and removed, and training continues."""

import signal

import pytest
from faultkit.elastic import ElasticJob, OfferedHosts, of_rank
from faultkit.newcomers import hold_back, let_come

import horovod
from horovod.launcher.elastic.constants import RESET_LIMIT_EXCEEDED_MESSAGE


@pytest.mark.promise
@pytest.mark.timeout(150)  # four processes import torch, three of them at the same time
def test_fault_2_and_5_torch_survives_the_loss_of_rank_1_and_then_of_rank_0(tmp_path):
    hold_back(tmp_path, 3, 4)
    with ElasticJob("torch", tmp_path, 3, "--min-np", "2") as job:
        first = job.stepped(0, 3)
        killed = job.kill(of_rank(1, first))
        second = job.stepped(1, 2)
        assert max(one["at"] for one in second.values()) - killed < 10
        assert {one["birth"]: one["pid"] for one in second.values()} == {0: first[0]["pid"], 2: first[2]["pid"]}
        let_come(tmp_path, 3)
        third = job.stepped(2, 3)  # with the replacement, which receives its state from a survivor
        assert set(third) == {0, 2, 3}
        assert all(one["steps"] > second[0]["steps"] for one in third.values())
        job.kill(of_rank(0, third))
        assert set(job.stepped(3, 2)) == {2, 3}
        job.finish(2)
        shown = job.printed()
    assert "generation 1: 2 workers after" in shown
    assert "left: rank 1 (worker 1 on localhost): killed by signal 9 (SIGKILL)" in shown
    assert "generation 2: 3 workers after" in shown
    assert "came: worker 3 on localhost as rank 2" in shown


def test_workers_come_and_go_with_the_slots_that_a_script_finds(tmp_path):
    offer = OfferedHosts(tmp_path, "localhost:2")
    with ElasticJob("numpy", tmp_path, 2, "--min-np", "1", "--max-np", "3", *offer.flags) as job:
        first = job.stepped(0, 2)
        offer("localhost:9")
        second = job.stepped(1, 3)
        assert {birth: second[birth]["pid"] for birth in first} == {birth: one["pid"] for birth, one in first.items()}
        offer.file.unlink()  # the script fails, so the last good list stays in force
        offer("localhost:1")
        assert set(job.stepped(2, 1)) == {0}
        job.finish(1)
        shown = job.printed()
    assert "generation 1: 3 workers after" in shown
    assert "left: rank 1 (worker 1 on localhost): its slot on localhost is gone" in shown
    assert "Traceback" not in shown


def test_faults_11_and_12_a_slot_whose_workers_always_fail_ends_the_job_below_the_minimum(tmp_path):
    hold_back(tmp_path, 2)
    with ElasticJob("numpy", tmp_path, 2, "--min-np", "2", more=("2",)) as job:
        job.kill(of_rank(1, job.stepped(0, 2)))
        # Without this wait the job might end earlier.
        job.await_printed("1 of at least 2 workers are ready: waiting for more")
        let_come(tmp_path, 2)
        assert job.wait(limit_s=40) == [128 + signal.SIGKILL]
        shown = job.printed()
    assert "1 of at least 2 workers are ready: waiting for more" in shown
    assert "the elastic job is ended: only 1 workers are possible, and --min-np asks for 2" in shown
    assert "worker 2 on localhost failed before it joined: exit code 7; another is started there" in shown
    assert "worker 3 on localhost failed before it joined: exit code 7; its slot (1) is not used any more" in shown
    table = shown[shown.index("who failed, and why:") :]
    assert [line.split()[:2] for line in table.splitlines()[1:5]] == [
        ["worker", "host"],
        ["1", "localhost"],
        ["2", "localhost"],
        ["3", "localhost"],
    ]


def test_workers_have_a_planned_place_before_init_and_their_own_one_after_it_and_each_reset(tmp_path):
    """Check that the program's environment matches its rank in each generation."""
    hold_back(tmp_path, 3)
    with ElasticJob("numpy", tmp_path, 3, "--min-np", "2") as job:
        first = job.stepped(0, 3)
        job.kill(of_rank(0, first))
        assert {one["birth"]: one["rank"] for one in job.stepped(1, 2).values()} == {1: 0, 2: 1}
        let_come(tmp_path, 3)
        assert job.stepped(2, 3)[3]["rank"] == 2
        job.finish(3)
        planned = {one["birth"]: one["planned"] for one in job.reports.all if one["event"] == "starts"}
    assert [planned[birth] for birth in range(3)] == [[number, 3, number, 3, 0, 1] for number in range(3)]
    assert planned[3] == [2, 3, 0, 3, 0, 1], "its slot has been that of worker 0"


def test_the_reset_limit_is_a_clear_end(tmp_path):
    with ElasticJob("numpy", tmp_path, 2, "--min-np", "1", "--reset-limit", "0") as job:
        job.kill(of_rank(0, job.stepped(0, 2)))
        assert job.wait(limit_s=40) == [1]
        assert RESET_LIMIT_EXCEEDED_MESSAGE.format(0) in job.printed()


def test_ctrl_c_ends_an_elastic_job(tmp_path):
    with ElasticJob("numpy", tmp_path, 2, "--min-np", "1") as job:
        job.stepped(0, 2)
        job.processes[0].send_signal(signal.SIGTERM)
        assert job.wait(limit_s=40) == [128 + signal.SIGTERM]


def test_a_function_in_an_elastic_job():
    def rank_and_size():
        import horovod.numpy as hvd

        hvd.init()
        return hvd.rank(), hvd.size()

    assert horovod.run(rank_and_size, num_proc=2, min_num_proc=1) == [(0, 2)]
    with pytest.raises(RuntimeError) as failed:
        horovod.run(lambda: 1 // 0, num_proc=1, min_num_proc=1)
    assert "only 0 workers are possible" in str(failed.value)
    assert str(failed.value).rstrip().endswith("ZeroDivisionError: integer division or modulo by zero")
