# SPDX-License-Identifier: Apache-2.0
"""Workers that freeze before they join an elastic job or get half of a state, and failures that others caused."""

import pytest
from faultkit.elastic import ElasticJob, of_rank
from faultkit.jobs import LaunchedJob, program
from faultkit.newcomers import hold_back, let_come

START_LIMIT_S = 10


@pytest.mark.timeout(120)
def test_nobody_waits_for_a_worker_that_freezes_while_it_starts_and_it_is_given_up_by_name(tmp_path):
    flags = ("--min-np", "1", "--elastic-timeout", str(START_LIMIT_S))
    with ElasticJob("numpy", tmp_path, 2, *flags, env={"TEST_FREEZES": "2"}) as job:
        first = job.stepped(0, 2)
        job.kill(of_rank(1, first))
        second = job.stepped(1, 1)  # its replacement, worker 2, never joins
        job.await_printed("worker 2 on localhost failed before it joined: it had not called hvd.init()")
        third = job.stepped(2, 2)
        assert set(third) == {0, 3}
        assert third[0]["steps"] > second[0]["steps"] + 10, "the survivor has trained meanwhile"
        job.finish(2)


def test_fault_31_a_peer_that_dies_while_it_hands_over_its_state_is_replaced_by_another_peer(tmp_path):
    hold_back(tmp_path, 3, 4)
    with ElasticJob("numpy", tmp_path, 3, "--min-np", "2", env={"TEST_DIES_IN_SYNC": "0"}) as job:
        first = job.stepped(0, 3)
        job.kill(of_rank(2, first))
        second = job.stepped(1, 2)
        let_come(tmp_path, 3)
        last = job.stepped_with(2, second)  # generation 2 made no step, because worker 0 died while worker 3 joined
        assert {birth: one["rank"] for birth, one in last.items()} == {1: 0, 3: 1}
        assert {one["steps"] for one in last.values()} == {last[1]["steps"]}
        assert last[1]["steps"] > second[1]["steps"], "nothing is lost but what was not committed"
        job.finish(2)


def test_fault_16_the_first_failure_of_an_elastic_job_is_not_that_of_a_worker_that_lost_another():
    with LaunchedJob(program("elastic_cause"), 2, ("--min-np", "2")) as job:
        assert job.wait(limit_s=60) == [1]
        shown = job.printed()
    why = "it raised KeyError: 'a mistake of the user' (exit code 1)"
    assert f"(first failure: worker 1 on localhost: {why})" in shown, shown
    table = shown[shown.index("who failed, and why:") :].splitlines()
    assert [line.split()[0] for line in table[1:4]] == ["worker", "1", "0"], shown
    assert table[3].endswith("exit code 1, after it had lost another rank")
