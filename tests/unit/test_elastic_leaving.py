# SPDX-License-Identifier: Apache-2.0
"""The elastic driver's decisions about workers that report an exception before they exit, by table."""

import signal

import pytest
from faultkit.membership import Driver, kinds

from horovod.common.joining.loss import SILENT, Loss
from horovod.launcher.elastic import vocabulary as v
from horovod.launcher.elastic.event_rules import LINGER_S
from horovod.launcher.elastic.turn import UNKILLABLE_S


def raise_in(driver, birth, **more):
    """Let a worker report an exception without exiting; the other members then request ranks."""
    driver.tell(v.Leaves(birth, "raised ValueError: boom", **more))
    for other in [other for other in driver.state.members if other != birth]:
        driver.tell(v.Ready(other))


def answer_until_killed(driver, birth, limit_s=20):
    """Let a worker answer each liveness question; return the seconds until the driver kills it."""
    began = driver.now
    while driver.now < began + limit_s:
        wait_s = driver.state.next_time() - driver.now
        actions = driver.tell(v.Tick(), later=wait_s)
        if v.Signal(birth, signal.SIGKILL) in actions:
            return driver.now - began
        if any(isinstance(action, v.Call) for action in actions):
            driver.tell(v.Listens(birth))
    raise AssertionError(f"worker {birth} lives after {limit_s} s")


@pytest.mark.parametrize("ends_when_killed", [True, False])
def test_a_member_that_raised_and_does_not_end_is_killed_though_it_answers(ends_when_killed):
    driver = Driver({"a": 3}, silence_s=30)
    driver.begin()
    driver.tell(v.Listens(1))
    raise_in(driver, 1, code=7)
    assert driver.ranks() == {0: 0, 1: 1, 2: 2}, "it shares memory with the others, and lives"
    assert answer_until_killed(driver, 1) == LINGER_S
    if ends_when_killed:
        actions = driver.tell(v.Ended(1, 137, "killed by signal 9 (SIGKILL)"))
    else:
        actions = driver.tell(v.Tick(), later=UNKILLABLE_S)
    assert kinds(actions) == ["Close", "Start", "Announce"]
    assert actions[-1].left == (v.Left(1, 1, "it raised ValueError: boom, and its process did not end"),)
    assert driver.state.failures == {("a", 1): 1}
    assert driver.ranks() == {0: 0, 2: 1}


@pytest.mark.parametrize(
    ("code", "how", "why"),
    [
        (7, "exit code 7", "it raised ValueError: boom (exit code 7)"),
        (137, "killed by signal 9 (SIGKILL)", "it raised ValueError: boom (killed by signal 9 (SIGKILL))"),
        (0, "exit code 0", "it raised ValueError: boom (exit code 0)"),
        (1, "the function raised ValueError: boom", "the function raised ValueError: boom"),
    ],
)
def test_a_member_that_raised_and_ends_in_time_tells_why(code, how, why):
    driver = Driver({"a": 3})
    driver.begin()
    raise_in(driver, 1, code=7)
    driver.tell(v.Ended(1, code, how))
    assert [one.why for one in driver.state.history] == [why]
    assert driver.state.first_failure is None, "the others go on"
    assert not driver.state.finished
    assert driver.ranks() == {0: 0, 2: 1}


def test_a_member_that_raised_ends_the_job_with_its_own_exit_code():
    driver = Driver({"a": 2}, num_proc=2, min_num_proc=2)
    driver.begin()
    driver.tell(v.Fails(1, "rank 1 cannot load x"))
    raise_in(driver, 1, code=7)
    answer_until_killed(driver, 1)
    (given_up,) = [one for one in driver.tell(v.Ended(1, 137, "killed")) if isinstance(one, v.GiveUp)]
    assert (given_up.code, given_up.why, given_up.worker) == (7, "rank 1 cannot load x", 1)


def test_a_member_that_failed_because_of_another_is_no_cause_if_it_does_not_end():
    driver = Driver({"a": 3})
    driver.begin()
    driver.tell(v.Leaves(0, "raised HorovodInternalError: rank 1 raised ValueError: boom", blames_peer=True))
    driver.tell(v.Tick(), later=LINGER_S)
    driver.tell(v.Ended(0, 137, "killed"))
    driver.tell(v.Ended(1, 3, "exit code 3"))
    assert [(one.birth, one.blames_peer) for one in driver.state.history] == [(1, False), (0, True)]


@pytest.mark.parametrize("late", ["after its end", "after it asked for a place", "while it leaves"])
def test_a_report_of_an_exception_that_comes_late_changes_nothing(late):
    driver = Driver({"a": 3})
    driver.begin()
    if late == "after its end":
        driver.tell(v.Ended(1, 1, "exit code 1"))
    elif late == "after it asked for a place":
        driver.tell(v.Ready(1))
    else:
        driver.tell(v.Discovered({"a": 1}))
        driver.begin()
    before = driver.state.workers
    driver.tell(v.Leaves(1, "raised ValueError: boom"))
    assert driver.state.workers == before


def test_a_member_that_raised_is_killed_though_a_cut_separates_it_from_another():
    driver = Driver({"a": 1, "b": 1, "c": 1}, min_num_proc=1)
    driver.begin()
    driver.tell(v.Leaves(2, "raised ValueError: boom"))
    driver.tell(v.Ready(1, Loss(2, SILENT, 1)))
    driver.tell(v.Probed(driver.state.cuts.round.number, frozenset([("b", "c")])))
    assert v.Signal(2, signal.SIGKILL) in driver.tell(v.Tick(), later=LINGER_S)
