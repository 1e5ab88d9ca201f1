# SPDX-License-Identifier: Apache-2.0
"""When a failed job is restarted, how long the pause is, and which messages report it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.launcher.options import JobOptions
from horovod.launcher.start.job import JobResult
from horovod.launcher.start.restarts import LONGEST_PAUSE_S, QUICK_S, Budget, restart_line
from horovod.launcher.start.worker_environment import number_of

FAILED = JobResult(
    exit_code=137, failed_rank=2, text="rank 2 (host b, pid 7) ...\n  last lines", why="rank 2 on b: killed"
)


@pytest.mark.parametrize(
    ("budget", "result", "is_last"),
    [
        (Budget(0), FAILED, True),
        (Budget(1), FAILED, False),
        (Budget(3, used=2), FAILED, False),
        (Budget(3, used=3), FAILED, True),
        (Budget(3), JobResult(), True),
        (Budget(3), JobResult(exit_code=143, stop_signal=15), True),
        (Budget(3), JobResult(exit_code=1, failed_rank=0, stop_signal=2), True),
    ],
)
def test_which_run_is_the_last(budget, result, is_last):
    assert budget.is_last(result) is is_last


def test_only_jobs_that_fail_at_once_are_restarted_after_a_pause_and_it_grows():
    budget, pauses = Budget(20), []
    for ran_s in (100, 1, 1, 1, 100, 1, *[1] * 7):
        budget, pause_s = budget.spend(ran_s)
        pauses.append(pause_s)
    assert pauses == [0, 1, 2, 4, 0, 1, 2, 4, 8, 16, 30, 30, 30]
    assert budget.used == 13


@given(st.integers(0, 50), st.lists(st.floats(0, 1e6), max_size=60))
def test_there_are_never_more_restarts_than_asked_for(most, runs):
    budget = Budget(most)
    for ran_s in runs:
        if budget.is_last(FAILED):
            break
        budget, pause_s = budget.spend(ran_s)
        assert 0 <= pause_s <= LONGEST_PAUSE_S
        assert bool(pause_s) == (ran_s < QUICK_S)
    assert budget.used == min(most, len(runs))


def test_the_reason_is_said_in_one_line():
    assert restart_line(Budget(3, used=1), FAILED, 0) == "restart 1 of 3: rank 2 on b: killed"
    elastic = JobResult(exit_code=1, text="the elastic job is ended: x")
    assert restart_line(Budget(3, used=2), elastic, 4.0) == (
        "restart 2 of 3: the elastic job is ended: x; it failed soon, so 4 s pass first"
    )


def test_the_number_is_given_or_of_the_environment(monkeypatch):
    assert number_of(JobOptions.of({}), "HOROVOD_MAX_RESTARTS") == 0
    monkeypatch.setenv("HOROVOD_MAX_RESTARTS", "4")
    assert number_of(JobOptions.of({"max_restarts": None}), "HOROVOD_MAX_RESTARTS") == 4
    assert number_of(JobOptions.of({"max_restarts": 0}), "HOROVOD_MAX_RESTARTS") == 0
    with pytest.raises(ValueError, match="max_restarts='-1' is not valid"):
        number_of(JobOptions.of({"max_restarts": -1}), "HOROVOD_MAX_RESTARTS")
