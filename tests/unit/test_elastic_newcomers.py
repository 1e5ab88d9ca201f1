# SPDX-License-Identifier: Apache-2.0
"""New workers of an elastic job: when the others stop for them, workers that never arrive, and causes of failures."""

import signal
from dataclasses import replace

import pytest
from faultkit.membership import Driver, kinds

from horovod.common import settings
from horovod.common.joining.elastic_place import meeting_limit_s
from horovod.common.joining.loss import Loss
from horovod.launcher.elastic import vocabulary as v
from horovod.launcher.elastic import words
from horovod.launcher.elastic.end_rules import FENCED_WHY
from horovod.launcher.elastic.state import GATHER_S, LEAST_START_S, SLOWER_START
from horovod.launcher.elastic.turn import UNKILLABLE_S
from horovod.launcher.elastic.vocabulary import ADDED, REMOVED


def two_are_added(start_s=1.0):
    driver = Driver({"a": 2}, num_proc=2, min_num_proc=1, fixed_hosts=False)
    driver.now += start_s
    driver.begin()
    assert kinds(driver.tell(v.Discovered({"a": 4}))) == ["Start", "Start"]
    return driver


def test_two_that_come_together_interrupt_the_others_once():
    driver = two_are_added()
    assert driver.tell(v.Ready(2, fresh=True), later=5) == [], "the other one is nearly there"
    assert driver.state.next_time() == driver.now + GATHER_S
    assert driver.tell(v.Ready(3, fresh=True), later=1) == [v.Notify((0, 1), 0, ADDED)]
    driver.tell(v.Ready(0))
    (announced,) = driver.tell(v.Ready(1), later=0.1)
    assert announced.came == (2, 3)
    assert announced.took_s == pytest.approx(0.1), "the members have stopped for no longer"


def test_one_whose_companion_takes_too_long_goes_first():
    driver = two_are_added()
    assert driver.tell(v.Ready(2, fresh=True), later=5) == []
    assert driver.tell(v.Tick(), later=GATHER_S) == [v.Notify((0, 1), 0, ADDED)]
    driver.tell(v.Ready(0))
    (announced,) = driver.tell(v.Ready(1))
    assert announced.came == (2,)
    assert driver.tell(v.Ready(3, fresh=True)) == [v.Notify((0, 1, 2), 1, ADDED)]


def test_nobody_gathers_for_one_whose_slot_goes_or_for_whom_there_is_no_room():
    driver = two_are_added()
    driver.tell(v.Ready(2, fresh=True))
    signalled, notified = driver.tell(v.Discovered({"a": 3}), later=1)
    assert (signalled.birth, notified.update) == (3, ADDED), "the one that is ready stays"
    driver = Driver({"a": 4}, spares=1)
    driver.begin()
    driver.tell(v.Ended(0, 137, "killed"))
    for birth in (1, 2):
        driver.tell(v.Ready(birth))
    assert driver.ranks().keys() == {1, 2, 3}, "the spare has taken the place"
    assert driver.tell(v.Tick(), later=GATHER_S) == []


def test_who_must_leave_does_so_whoever_gathers():
    driver = two_are_added()
    driver.tell(v.Ready(2, fresh=True))
    assert driver.tell(v.Preempted(1), later=0.5)[-1] == v.Notify((0, 1), 0, REMOVED)


def test_a_newcomer_that_never_asks_for_a_place_stops_nobody_and_is_given_up_by_name():
    driver = two_are_added(start_s=9)
    driver.tell(v.Ready(2, fresh=True))
    driver.tell(v.Tick(), later=GATHER_S)
    driver.tell(v.Ready(0))
    assert kinds(driver.tell(v.Ready(1))) == ["Announce"], "those who are there go on"
    began = driver.state.workers[3].started
    assert driver.state.next_time() == began + SLOWER_START * 9
    assert driver.tell(v.Tick(), later=driver.state.next_time() - driver.now) == [v.Signal(3, signal.SIGKILL)]
    assert driver.tell(v.Ready(3)) == [v.Dismiss(3, "this worker does not belong to the job any more")]
    assert driver.tell(v.Ended(3, 137, "killed by signal 9")) == [v.Start(4, ("a", 3))]
    (failure,) = driver.state.history
    why = "it had not called hvd.init() 90 s after its start, so it was killed"
    assert words.failed(failure, None, 0.0) == f"worker 3 on a failed before it joined: {why}; another is started there"


def test_one_that_cannot_even_be_killed_does_not_keep_its_slot():
    driver = two_are_added()
    driver.tell(v.Tick(), later=LEAST_START_S)
    assert kinds(driver.tell(v.Tick(), later=UNKILLABLE_S)) == ["Start", "Start"]


@pytest.mark.parametrize(
    ("timeout_s", "start_s", "limit_s"),
    [(600, 1, LEAST_START_S), (600, 20, 200), (600, 100, 600), (8, 1, 8), (0, 1, LEAST_START_S)],
)
def test_how_long_a_newcomer_may_take(timeout_s, start_s, limit_s):
    driver = Driver({"a": 2}, num_proc=2, min_num_proc=1, timeout_s=timeout_s, fixed_hosts=False)
    for birth in (0, 1):
        driver.tell(v.Ready(birth), later=start_s / 2)
    driver.tell(v.Discovered({"a": 3}), later=1)
    assert driver.state.next_time() == driver.now + limit_s


def test_before_anybody_trains_all_wait_for_all_but_not_for_ever():
    driver = Driver({"a": 3}, timeout_s=30)
    assert driver.tell(v.Tick(), later=1000) == [], "a program may do without hvd.init()"
    for birth in (0, 1):
        assert driver.tell(v.Ready(birth)) == []
    assert driver.tell(v.Tick(), later=29) == []
    assert driver.tell(v.Tick(), later=1) == [v.Signal(2, signal.SIGKILL)]
    assert driver.tell(v.Ended(2, 137, "killed")) == [v.Start(3, ("a", 2))]
    assert kinds(driver.tell(v.Ready(3))) == ["Announce"]


def test_who_waits_below_the_minimum_in_vain_is_told_whom_for():
    driver = Driver({"a": 2}, num_proc=2, timeout_s=20)
    driver.begin()
    driver.tell(v.Ended(1, 137, "killed"), later=1)
    driver.tell(v.Ready(0))
    driver.state.workers[2] = replace(driver.state.workers[2], started=driver.now + 5)
    (given_up,) = driver.tell(v.Tick(), later=20)
    assert given_up.why.endswith("and 2 slots are known; still being started: worker 2 on a")


def test_a_worker_that_does_not_come_to_the_meeting_is_awaited_like_one_that_falls_silent():
    def limit(elastic, **values):
        environ = {"HOROVOD_BIRTH_ID": "3"} if elastic else {}
        return meeting_limit_s(settings.load({f"HOROVOD_{name}": value for name, value in values.items()}), environ)

    assert (limit(True), limit(False)) == (10, 30)
    assert limit(True, PEER_TIMEOUT_SECONDS="0") == 30
    assert limit(True, GLOO_TIMEOUT_SECONDS="4") == 4


# Causes of failures


def test_the_first_failure_is_the_cause_and_not_who_lost_it_and_ended_earlier():
    driver = Driver({"a": 3})
    driver.begin()
    driver.tell(v.Ended(0, 1, "exit code 1", blames_peer=True))
    driver.tell(v.Ended(1, 3, "exit code 3"))
    given_up = driver.tell(v.Ended(2, 1, "exit code 1", blames_peer=True))[-1]
    assert (given_up.code, given_up.worker) == (3, 1)
    assert given_up.why.endswith("(first failure: worker 1 on a: exit code 3)")
    assert words.failure_table(given_up.failures).splitlines()[2:] == [
        "  1       a     1     exit code 3",
        "  0       a     0     exit code 1, after it had lost another rank",
        "  2       a     2     exit code 1, after it had lost another rank",
    ]


def test_if_all_blame_another_the_first_of_them_is_named():
    driver = Driver({"a": 3})
    driver.begin()
    for birth in (2, 0, 1):
        actions = driver.tell(v.Ended(birth, birth + 1, "exit code", blames_peer=True))
    assert (actions[-1].code, actions[-1].worker) == (3, 2)


def test_what_followed_from_one_loss_does_not_move_behind_a_later_one():
    driver = Driver({"a": 3}, min_num_proc=1)
    driver.begin()
    driver.tell(v.Ended(0, 3, "cause"))
    driver.tell(v.Ended(1, 1, "consequence", blames_peer=True))
    driver.tell(v.Ready(2))
    given_up = driver.tell(v.Ended(2, 4, "another cause"))[-1]
    assert [one.why for one in given_up.failures] == ["cause", "consequence", "another cause"]
    assert given_up.worker == 2


def test_a_member_that_does_not_answer_while_others_wait_for_it_is_fenced_and_one_that_is_busy_is_not():
    driver = Driver({"a": 4}, num_proc=4, silence_s=3.0)
    driver.begin()
    for birth in range(4):
        driver.tell(v.Listens(birth))
    driver.tell(v.Ended(1, 137, "killed"))
    driver.tell(v.Ready(0, lost=Loss(1)))  # worker 2 is busy, worker 3 is frozen; no member has reported their loss
    assert driver.tell(v.Tick(), later=0.9) == []
    assert driver.state.next_time() == 1.0
    calls = []
    for _ in range(3):
        calls += driver.tell(v.Tick(), later=1)
        driver.tell(v.Told(2, (0, 1, 1), waits=False))
    reminder = v.Notify((0, 1, 2, 3), 0, REMOVED)  # for the worker that is busy
    assert calls == [*[v.Call((2, 3))] * 3, reminder]
    assert driver.tell(v.Tick(), later=1) == [v.Signal(3, signal.SIGKILL), v.Call((2, 3)), reminder]
    for _ in range(60):
        driver.tell(v.Told(2, (0, 1, 1), waits=False))
        assert v.Call((2,)) in driver.tell(v.Tick(), later=1)
    driver.tell(v.Ended(3, 137, "killed"))
    announced = driver.tell(v.Ready(2, lost=Loss(1)))[-1]
    assert {left.birth: left.why for left in announced.left} == {1: "killed", 3: FENCED_WHY}


def test_a_launcher_that_was_suspended_asks_before_it_takes_silence_for_an_end():
    driver = Driver({"a": 3}, silence_s=3.0)
    driver.begin()
    driver.tell(v.Listens(2))
    driver.tell(v.Ended(1, 137, "killed"))
    driver.tell(v.Ready(0, lost=Loss(1)))
    for _ in range(3):
        assert v.Call((2,)) in driver.tell(v.Tick(), later=100)
        assert driver.state.workers[2].phase is v.Phase.MEMBER
