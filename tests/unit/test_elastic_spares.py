# SPDX-License-Identifier: Apache-2.0
"""The elastic driver's decisions about spares, preempted workers and workers without progress."""

import pytest
from faultkit.membership import Driver, kinds
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.launcher.elastic import vocabulary as v
from horovod.launcher.elastic import words
from horovod.launcher.elastic.progress import Ask, Stuck, Watch, look, told_by
from horovod.launcher.elastic.running import limits_of
from horovod.launcher.elastic.state import SPARE_S
from horovod.launcher.elastic.turn import GOING_S
from horovod.launcher.elastic.vocabulary import ADDED, REMOVED, Told
from horovod.launcher.options import JobOptions


def with_spares(hosts, spares=1, **limits):
    """Start an elastic job with spares; return its driver."""
    driver = Driver(hosts, spares=spares, **limits)
    driver.begin()
    return driver


def test_a_spare_that_is_ready_takes_the_place_of_the_lost_one_at_once():
    driver = with_spares({"a": 4})
    assert driver.ranks() == {0: 0, 1: 1, 2: 2}
    assert driver.log[-1].spares == (3,)  # announced while the spare was still being started
    assert kinds(driver.tell(v.Ended(1, 137, "killed"))) == ["Close", "Start"]
    driver.tell(v.Ready(0))
    (announced,) = driver.tell(v.Ready(2))
    assert set(announced.places) == {0, 2, 3}
    assert (announced.came, announced.spares) == ((3,), (4,))
    assert driver.tell(v.Ready(4)) == [], "nobody stops for a spare"
    assert driver.state.next_time() is None
    line = words.announcement(announced, {0: ("a", 0), 1: ("a", 1), 2: ("a", 2), 3: ("a", 3), 4: ("a", 1)})
    assert line.endswith("came: worker 3 on a as rank 2; spare: worker 4 on a")


def test_survivors_wait_a_second_for_a_spare_that_is_on_its_way_then_admit_it_at_a_commit():
    driver = Driver({"a": 4}, spares=1)
    for birth in (0, 1, 2):
        driver.tell(v.Ready(birth))
    driver.tell(v.Ended(1, 137, "killed"), later=5)
    driver.tell(v.Ready(0))
    assert driver.tell(v.Ready(2)) == []
    assert driver.state.next_time() == driver.now + SPARE_S
    assert driver.tell(v.Tick(), later=SPARE_S / 2) == []
    (announced,) = driver.tell(v.Tick(), later=SPARE_S / 2)
    assert set(announced.places) == {0, 2}
    assert driver.tell(v.Ready(3)) == [v.Notify((0, 2), 1, ADDED)]


def test_a_spare_that_comes_within_the_second_is_not_left_behind():
    driver = Driver({"a": 4}, spares=1)
    for birth in (0, 1, 2):
        driver.tell(v.Ready(birth))
    driver.tell(v.Ended(0, 137, "killed"), later=5)
    driver.tell(v.Ready(1))
    driver.tell(v.Ready(2))
    (announced,) = driver.tell(v.Ready(3), later=0.5)
    assert set(announced.places) == {1, 2, 3}
    assert driver.ranks()[1] == 0, "rank 0 has the state"


def test_nobody_waits_for_a_mere_replacement():
    driver = Driver({"a": 3})
    driver.begin()
    driver.tell(v.Ended(1, 137, "killed"))
    driver.tell(v.Ready(0))
    assert kinds(driver.tell(v.Ready(2))) == ["Announce"]


@pytest.mark.parametrize(
    ("slots", "spares", "limits", "members"),
    [
        (6, 2, {}, 4),  # all slots except the spares' train
        (3, 2, {}, 3),  # the requested workers come before spares
        (9, 1, {"max_num_proc": 4}, 4),
        (4, 0, {}, 4),
    ],
)
def test_how_many_train_and_how_many_wait(slots, spares, limits, members):
    driver = with_spares({"a": slots}, spares, fixed_hosts=False, **limits)
    assert len(driver.state.members) == members
    assert len(driver.state.workers) == min(slots, members + spares)


def test_a_spare_whose_slot_goes_is_ended_and_one_whose_slot_always_fails_is_given_up():
    driver = with_spares({"a": 3, "b": 1}, fixed_hosts=False)
    assert kinds(driver.tell(v.Discovered({"a": 3}))) == ["Signal"]
    driver = with_spares({"a": 3, "b": 1})
    starts = [kinds(driver.tell(v.Ended(birth, 1, "exit code 1"))) for birth in (3, 4, 5)]
    assert starts == [["Start"], ["Start"], []], "members never stop for it"
    assert [one.birth for one in driver.state.history] == [3, 4, 5]


def test_a_preempted_worker_leaves_at_the_next_commit_and_its_slot_rests():
    driver = Driver({"a": 3})
    driver.begin()
    assert driver.tell(v.Preempted(2)) == [v.Excuse(2, True), v.Notify((0, 1, 2), 0, REMOVED)]
    for birth in (0, 1):
        assert driver.tell(v.Ready(birth)) == []
    dismissed, announced = driver.tell(v.Ready(2))
    assert dismissed == v.Dismiss(2, "SIGTERM: preempted")
    assert announced.left == (v.Left(2, 2, "SIGTERM: preempted"),)
    assert driver.tell(v.Ended(2, 0, "exit code 0")) == []
    assert not driver.state.finished
    assert driver.tell(v.Tick(), later=GOING_S / 2) == []
    assert driver.tell(v.Tick(), later=GOING_S / 2) == [v.Start(3, ("a", 2))], "it is still offered"


def test_a_preempted_worker_whose_host_goes_is_not_replaced():
    driver = Driver({"a": 2, "b": 1}, fixed_hosts=False)
    driver.begin()
    driver.tell(v.Preempted(2))
    for birth in (0, 1, 2):
        driver.tell(v.Ready(birth))
    driver.tell(v.Ended(2, 0, "exit code 0"))
    driver.tell(v.Discovered({"a": 2}))
    assert driver.tell(v.Tick(), later=2 * GOING_S) == []


def test_a_spare_takes_the_place_of_a_preempted_worker():
    driver = with_spares({"a": 4})
    assert driver.tell(v.Preempted(0))[-1] == v.Notify((0, 1, 2), 0, REMOVED | ADDED)
    for birth in (0, 1, 2):
        actions = driver.tell(v.Ready(birth))
    assert set(actions[-1].places) == {1, 2, 3}


def test_a_preempted_worker_without_a_commit_is_lost_like_any_other_but_its_slot_is_not_to_blame():
    driver = Driver({"a": 3})
    driver.begin()
    driver.tell(v.Preempted(1))
    assert driver.tell(v.Ended(1, 143, "terminated")) == [
        v.Close(0, "rank 1 has ended: SIGTERM: preempted, then terminated")
    ]
    assert driver.state.failures == {}


def test_who_does_not_train_is_not_excused():
    driver = Driver({"a": 4}, max_num_proc=3, spares=1)
    driver.begin()
    assert driver.tell(v.Preempted(3)) == [v.Excuse(3, False)]
    assert driver.tell(v.Preempted(77)) == [v.Excuse(77, False)]


def test_if_all_are_preempted_all_leave_in_order_and_the_job_says_so():
    driver = Driver({"a": 3})
    driver.begin()
    for birth in (0, 1, 2):
        driver.tell(v.Preempted(birth))
    for birth in (0, 1, 2):
        actions = driver.tell(v.Ready(birth))
    assert kinds(actions) == ["Dismiss"] * 3
    assert driver.tell(v.Ended(0, 0, "exit code 0")) == driver.tell(v.Ended(1, 0, "exit code 0")) == []
    (given_up,) = driver.tell(v.Ended(2, 0, "exit code 0"))
    assert given_up.code == 143
    assert "all workers were preempted (SIGTERM)" in given_up.why


def test_fault_9_below_the_minimum_by_a_graceful_leave_and_later_back():
    driver = Driver({"a": 2, "b": 1}, min_num_proc=3, fixed_hosts=False)
    driver.begin()
    driver.tell(v.Discovered({"a": 2}))
    for birth in (0, 1, 2):
        actions = driver.tell(v.Ready(birth))
    assert actions == [v.Dismiss(2, "its slot on b is gone"), v.Waiting(2, 3)]
    driver.tell(v.Ended(2, 0, "exit code 0"))
    assert driver.tell(v.Discovered({"a": 2, "b": 1})) == [v.Start(3, ("b", 0))]
    (announced,) = driver.tell(v.Ready(3), later=30)
    assert {birth: place.rank for birth, place in announced.places.items()} == {0: 0, 1: 1, 3: 2}
    assert announced.left == (v.Left(2, 2, "its slot on b is gone"),)


def test_fault_8_a_failure_during_recovery_and_two_at_once():
    driver = Driver({"a": 4}, num_proc=4)
    driver.begin()
    driver.tell(v.Ended(1, 137, "killed"))
    driver.tell(v.Ready(0))
    driver.tell(v.Ended(3, 137, "killed"))
    (announced,) = driver.tell(v.Ready(2))
    assert [one.rank for one in announced.left] == [1, 3]
    driver.tell(v.Ended(2, 1, "died while the ranks met"))
    closed = [action for action in driver.log if isinstance(action, v.Close)]
    assert closed[-1].generation == 1
    assert kinds(driver.tell(v.Ready(0))) == ["Waiting"]
    assert kinds(driver.tell(v.Ready(4))) == ["Announce"]


def test_fault_10_a_host_that_flaps_costs_no_more_than_a_start_each_time():
    driver = Driver({"a": 3}, fixed_hosts=False)
    driver.begin()
    for _ in range(20):
        (start,) = driver.tell(v.Discovered({"a": 3, "b": 1}), later=1)
        (ended,) = driver.tell(v.Discovered({"a": 3}), later=1)
        assert (start.slot, ended.birth) == (("b", 0), start.birth)
        driver.tell(v.Ended(start.birth, 143, "terminated"))
    assert driver.state.generation == 0
    assert driver.state.next_time() is None, "no busy loop"


def test_fault_11_the_end_comes_with_who_failed_and_why():
    driver = Driver({"a": 2}, num_proc=2)
    driver.begin()
    driver.tell(v.Ready(0))
    for birth in (1, 2, 3):
        actions = driver.tell(v.Ended(birth, 3, f"exit code {birth}"))
    table = words.failure_table(actions[-1].failures).splitlines()
    assert table == [
        "who failed, and why:",
        "  worker  host  slot  why",
        "  1       a     1     exit code 1",
        "  2       a     1     exit code 2",
        "  3       a     1     exit code 3",
    ]


# Progress


def told(birth, mark, waits, stack=""):
    return Told(birth, (mark,), waits, stack)


def at(moment, watch, members, answer=None):
    return look(watch, members, answer, moment)


def test_a_worker_that_others_wait_for_is_reported_once_with_its_stack():
    watch, asked = at(0.0, Watch(8.0), [0, 1])
    assert asked == []
    watch, asked = at(2.0, watch, [0, 1])
    assert asked == [Ask((0, 1), ())]
    for birth in (0, 1):
        watch, _ = at(2.1, watch, [0, 1], told(birth, 5, waits=birth == 0))
    watch, asked = at(6.1, watch, [0, 1])
    assert asked == [Ask((0, 1), (0, 1))]
    for birth in (0, 1):
        watch, _ = at(6.2, watch, [0, 1], told(birth, 5, waits=birth == 0, stack=f"stack {birth}"))
    assert watch.next_time() == 8.1
    watch, found = at(10.2, watch, [0, 1])
    assert found[0] == Stuck(1, pytest.approx(8.1), "stack 1")
    assert [action for action in at(11.0, watch, [0, 1])[1] if isinstance(action, Stuck)] == []
    watch, _ = at(11.0, watch, [0, 1], told(1, 6, waits=False))
    assert watch.members[1].since == 11.0


@pytest.mark.parametrize(
    ("waits", "reported", "killed"),
    [
        ([True, False, True], [1], [1]),
        ([True, True, True], [0, 1, 2], []),  # each worker waits for another one, so none can be blamed
        ([False, False, False], [0, 1, 2], []),  # all are busy; killing all of them would not help
    ],
)
def test_who_is_to_blame_and_who_is_killed(waits, reported, killed):
    members = range(len(waits))
    watch, _ = at(0.0, Watch(4.0, kills=True), members)
    for birth in members:
        watch, _ = at(0.1, watch, members, told(birth, 1, waits[birth]))
    stuck = [action for action in at(4.2, watch, members)[1] if isinstance(action, Stuck)]
    assert [one.birth for one in stuck] == reported
    assert [one.birth for one in stuck if one.kill] == killed


def test_one_that_does_not_answer_is_stuck_too():
    watch, _ = at(0.0, Watch(4.0, kills=True), [0, 1])
    watch, _ = at(1.0, watch, [0, 1], told(0, 1, waits=True))
    stuck = [action for action in at(4.5, watch, [0, 1])[1] if isinstance(action, Stuck)]
    assert stuck == [Stuck(1, 4.5, "", kill=True)]
    worker = v.Worker(1, ("a", 0), rank=1)
    assert words.stuck(stuck[0], worker) == (
        "rank 1 (worker 1 on a) makes no progress: no operation ended and nothing was committed for 4 s; "
        "it is killed and replaced; it does not tell where it is"
    )


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.4, 3.0]),
            st.sets(st.integers(0, 3)),
            st.none() | st.builds(told, st.integers(0, 4), st.integers(0, 2), st.booleans()),
        ),
        max_size=30,
    )
)
def test_nobody_is_blamed_too_early_or_twice(steps):
    watch, now, changed, blamed = Watch(2.0), 0.0, {}, set()
    for later, members, answer in steps:
        now += later
        changed = {birth: changed.get(birth, (now, ())) for birth in members}
        blamed &= members
        if answer is not None and answer.birth in members and answer.mark != changed[answer.birth][1]:
            changed[answer.birth] = (now, answer.mark)
            blamed.discard(answer.birth)
        watch, actions = look(watch, members, answer, now)
        for action in actions:
            if isinstance(action, Stuck):
                assert now - changed[action.birth][0] >= 2.0
                assert action.birth not in blamed
                blamed.add(action.birth)
        assert watch.next_time() is None or watch.next_time() > now


def test_an_answer_as_it_travels():
    message = {"op": "progress", "generation": 1, "finished": 7, "commits": 2, "waits": True, "stack": "x" * 10**6}
    heard = told_by(4, message)
    assert (heard.birth, heard.mark, heard.waits, len(heard.stack)) == (4, (1, 7, 2), True, 20_000)


def test_limits_with_spares():
    given_ = {
        "num_proc": 4,
        "min_num_proc": 2,
        "spares": 2,
        "progress_timeout_seconds": 9,
        "replace_stuck_workers": True,
    }
    limits = limits_of(JobOptions.of(given_), {"localhost": 8})
    assert (limits.max_num_proc, limits.spares, limits.progress_timeout_s, limits.replace_stuck) == (6, 2, 9.0, True)
