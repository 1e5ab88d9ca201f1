# SPDX-License-Identifier: Apache-2.0
"""The elastic driver's decisions: a table and random orders of events, without processes, sockets or a clock."""

import signal
import string

import pytest
from faultkit.membership import Driver, kinds
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.common.joining.loss import REFUSED, SILENT, Loss
from horovod.common.lineage import SeenFile
from horovod.launcher.elastic import vocabulary as v
from horovod.launcher.elastic import words
from horovod.launcher.elastic.constants import RESET_LIMIT_EXCEEDED_MESSAGE
from horovod.launcher.elastic.end_rules import FENCED_WHY, MOST_FAILURES
from horovod.launcher.elastic.event_rules import FENCE_S
from horovod.launcher.elastic.membership import decide
from horovod.launcher.elastic.places import places_of, resettled
from horovod.launcher.elastic.state import LOSS_S
from horovod.launcher.elastic.turn import LEAVING_S, UNKILLABLE_S
from horovod.launcher.elastic.vocabulary import ADDED, REMOVED, reported_by


def test_a_job_begins_with_as_many_as_asked_for_and_all_at_once():
    driver = Driver({"a": 2})
    assert driver.log == []
    assert driver.tell(v.Discovered({"a": 2, "b": 1})) == [
        v.Start(0, ("a", 0)),
        v.Start(1, ("a", 1)),
        v.Start(2, ("b", 0)),
    ]
    assert driver.tell(v.Ready(1)) == []
    assert driver.tell(v.Ready(0)) == []
    (announced,) = driver.tell(v.Ready(2))
    assert (announced.generation, announced.took_s, announced.came) == (0, None, ())
    assert [(p.rank, p.local_rank, p.local_size, p.cross_size) for _, p in sorted(announced.places.items())] == [
        (0, 0, 2, 2),
        (1, 1, 2, 1),
        (2, 0, 1, 2),
    ]


def test_survivors_of_rank_0_go_on_at_once_and_admit_its_replacement_later():
    driver = Driver({"a": 3})
    driver.begin()
    assert driver.tell(v.Ended(0, 137, "killed")) == [v.Close(0, "rank 0 has ended: killed"), v.Start(3, ("a", 0))]
    assert driver.tell(v.Ready(2)) == []
    (announced,) = driver.tell(v.Ready(1), later=0.5)
    assert {birth: place.rank for birth, place in announced.places.items()} == {1: 0, 2: 1}
    assert announced.left == (v.Left(0, 0, "killed"),)
    assert announced.took_s == 0.5
    assert driver.tell(v.Ready(3)) == [v.Notify((1, 2), 1, ADDED)]
    assert driver.tell(v.Tick(), later=0.5) == []
    assert driver.tell(v.Tick(), later=0.5) == [v.Notify((1, 2), 1, ADDED)]
    driver.tell(v.Ready(1))
    (announced,) = driver.tell(v.Ready(2))
    assert (announced.generation, announced.came) == (2, (3,))
    assert driver.ranks() == {1: 0, 2: 1, 3: 2}


def test_survivors_that_come_before_the_death_is_known_wait_for_it():
    driver = Driver({"a": 3})
    driver.begin()
    assert driver.tell(v.Ready(0)) == driver.tell(v.Ready(2)) == []
    assert kinds(driver.tell(v.Ended(1, 1, "exit code 1"))) == ["Close", "Start", "Announce"]


def test_a_slot_that_is_taken_away_lets_its_worker_go_at_the_next_commit():
    driver = Driver({"a": 3})
    driver.begin()
    assert driver.tell(v.Discovered({"a": 2})) == [v.Notify((0, 1, 2), 0, REMOVED)]
    driver.tell(v.Ready(0))
    driver.tell(v.Ready(2))
    dismissed, announced = driver.tell(v.Ready(1))
    assert dismissed == v.Dismiss(2, "its slot on a is gone")
    assert announced.left == (v.Left(2, 2, "its slot on a is gone"),)
    assert driver.tell(v.Tick(), later=LEAVING_S) == [v.Signal(2, signal.SIGKILL)]
    assert driver.tell(v.Ended(2, 137, "killed")) == []


def test_too_few_wait_for_a_replacement_and_say_so_once():
    driver = Driver({"a": 2}, num_proc=2)
    driver.begin()
    driver.tell(v.Ended(1, 137, "killed"))
    (few,) = driver.tell(v.Ready(0))
    said = "1 of at least 2 workers are ready: waiting for more, at most 600 s; still being started: worker 2 on a"
    assert words.waiting(few, 600) == said
    assert driver.tell(v.Tick()) == []
    assert kinds(driver.tell(v.Ready(2))) == ["Announce"]


def test_a_slot_whose_workers_always_fail_is_given_up_and_then_the_job():
    driver = Driver({"a": 2}, num_proc=2)
    driver.begin()
    driver.tell(v.Ready(0))
    for birth in (1, 2):
        assert driver.tell(v.Ended(birth, 3, "exit code 3"))[-1] == v.Start(birth + 1, ("a", 1)) or birth == 1
    (given_up,) = driver.tell(v.Ended(3, 3, "exit code 3"))
    assert given_up.code == 3
    assert "only 1 workers are possible, and --min-np asks for 2" in given_up.why
    assert driver.tell(v.Ready(0)) == []


def test_a_program_that_never_begins_anywhere_is_given_up_though_other_hosts_may_come():
    driver = Driver({"a": 1}, num_proc=1, min_num_proc=1, fixed_hosts=False)
    for birth in range(MOST_FAILURES - 1):
        assert kinds(driver.tell(v.Ended(birth, 3, "broken"))) == ["Start"]
    (end,) = driver.tell(v.Ended(MOST_FAILURES - 1, 3, "broken"))
    assert end.code == 3
    assert "first failure: worker 0 on a: broken" in end.why


def test_a_cooldown_grows_within_its_range_and_healthy_slots_go_on():
    driver = Driver({"a": 2, "b": 1}, cooldown=(10, 30), fixed_hosts=False)
    driver.begin()
    rests = []
    for birth in (1, 3, 4, 5):
        began = driver.now
        driver.tell(v.Ended(birth, 1, "exit code 1"))
        assert ("a", 0) not in driver.state.rests_until
        assert "Start" in kinds(driver.tell(v.Tick(), later=driver.state.rests_until["a", 1] - driver.now))
        rests.append(driver.now - began)
    assert rests == [10, 20, 30, 30]


def test_without_a_survivor_the_job_is_over():
    driver = Driver({"a": 3})
    driver.begin()
    driver.tell(v.Ended(2, 9, "exit code 9"))
    driver.tell(v.Ended(1, 1, "exit code 1"))
    given_up = driver.tell(v.Ended(0, 1, "exit code 1"))[-1]
    assert given_up.code == 9
    assert "worker 2 on a: exit code 9" in given_up.why


def with_a_newcomer_before_it_has_the_state():
    driver = Driver({"a": 2, "b": 1}, min_num_proc=1)
    driver.begin()
    driver.tell(v.Ended(1, 137, "killed"))
    for birth in (0, 2, 3):
        driver.tell(v.Ready(birth, fresh=birth == 3))
    for birth in (0, 2):
        driver.tell(v.Ready(birth))
    assert driver.ranks() == {0: 0, 3: 1, 2: 2}
    driver.tell(v.Ended(0, 137, "killed"))
    return driver


def test_rank_0_is_never_a_member_that_has_not_got_the_state_yet():
    driver = with_a_newcomer_before_it_has_the_state()
    driver.tell(v.Ready(3, fresh=True))
    driver.tell(v.Ready(2))
    assert driver.ranks()[2] == 0


def test_members_that_have_not_got_the_state_yet_cannot_go_on_without_the_others():
    driver = with_a_newcomer_before_it_has_the_state()
    driver.tell(v.Ready(3, fresh=True))
    assert kinds(driver.tell(v.Ended(2, 137, "killed")))[-1] == "GiveUp"


def test_members_whose_training_has_not_begun_begin_anew():
    driver = Driver({"a": 3})
    driver.begin()
    driver.tell(v.Ended(0, 137, "killed"))
    driver.tell(v.Ready(1, fresh=True))
    assert kinds(driver.tell(v.Ready(2, fresh=True))) == ["Announce"]


def test_a_host_with_fewer_slots_keeps_its_senior_workers_whatever_their_slots():
    driver = Driver({"a": 3}, min_num_proc=1)
    driver.begin()
    driver.tell(v.Ended(0, 137, "killed"))
    for birth in (1, 2):
        driver.tell(v.Ready(birth))
    assert driver.ranks() == {1: 0, 2: 1}
    driver.tell(v.Discovered({"a": 1}))  # the slots of both workers are removed
    driver.tell(v.Ready(1))
    (dismissed, announced) = driver.tell(v.Ready(2))
    assert (dismissed.birth, dict(announced.places).keys()) == (2, {1})


def test_resettled():
    assert resettled([(5, ("a", 3)), (6, ("a", 0)), (7, ("b", 1))], {"a": 1, "b": 2}) == {5: ("a", 0), 6: ("a", 1)}
    assert resettled([(5, ("a", 1)), (6, ("a", 4)), (7, ("a", 0))], {"a": 3}) == {6: ("a", 2)}
    assert resettled([(5, ("a", 1))], {}) == {}


def test_when_all_hosts_are_exchanged_one_worker_stays_until_the_new_ones_have_the_state():
    driver = Driver({"a": 2}, num_proc=2, max_num_proc=2)
    driver.begin()
    assert kinds(driver.tell(v.Discovered({"b": 2}))) == ["Start", "Start", "Notify"]
    assert driver.tell(v.Ready(0)) == driver.tell(v.Ready(1)) == []
    dismissed, _, notified = driver.tell(v.Ready(2, fresh=True))
    assert (dismissed.birth, driver.ranks(), notified.update) == (1, {0: 0, 2: 1}, REMOVED)
    driver.tell(v.Ready(3, fresh=True))
    driver.tell(v.Ready(0))
    dismissed, _ = driver.tell(v.Ready(2))
    assert (dismissed.birth, driver.ranks()) == (0, {2: 0, 3: 1})


def test_the_reset_limit_ends_the_job():
    driver = Driver({"a": 3}, reset_limit=1)
    driver.begin()
    for victim in (1, 2):
        driver.tell(v.Ended(victim, 137, "killed"))
        for birth in driver.state.members:
            actions = driver.tell(v.Ready(birth)) if birth in driver.state.workers else []
            driver.tell(v.Ready(3)) if birth == 0 and victim == 1 else None
    told = RESET_LIMIT_EXCEEDED_MESSAGE.format(1)
    assert any(isinstance(action, v.GiveUp) and action.why == told for action in [*actions, *driver.log])


def test_the_text_about_the_reset_limit_has_one_field():
    fields = [name for _, name, _, _ in string.Formatter().parse(RESET_LIMIT_EXCEEDED_MESSAGE) if name is not None]
    assert fields == [""]
    assert "limit of 7" in RESET_LIMIT_EXCEEDED_MESSAGE.format(7)


def test_who_waits_too_long_gives_up():
    driver = Driver({"a": 1}, timeout_s=7, fixed_hosts=False)
    assert driver.state.next_time() == 7
    (given_up,) = driver.tell(v.Tick(), later=7)
    assert "after 7 s (--elastic-timeout) 0 workers are ready, 3 are needed, and 1 slots are known" in given_up.why


def test_a_host_that_is_gone_takes_its_workers_along():
    driver = Driver({"a": 2, "b": 1})
    driver.begin()
    actions = driver.tell(v.HostGone("b", "no heartbeat"))
    assert kinds(actions) == ["Close"]
    assert set(driver.state.workers) == {0, 1}


@pytest.mark.parametrize(("host", "lost"), [("b", [2]), ("a", [0])])
def test_members_that_still_train_with_a_host_that_only_the_driver_lost_are_notified(host, lost):
    """The members are notified even if the lost host has rank 0, which broadcasts the state."""
    driver = Driver({"a": 1, "b": 2} if host == "a" else {"a": 2, "b": 1})
    driver.begin()
    driver.tell(v.HostGone(host, "its agent does not answer"))
    first, last = (birth for birth in range(3) if birth not in lost)
    assert driver.state.next_time() == LOSS_S
    assert driver.tell(v.Tick(), later=LOSS_S / 2) == []
    notice = v.Notify((0, 1, 2), 0, REMOVED)
    assert driver.tell(v.Tick(), later=LOSS_S / 2) == [notice]
    assert driver.tell(v.Ready(first)) == []
    assert driver.tell(v.Tick(), later=1.0) == [notice], "the other one has not asked for a place yet"
    assert driver.tell(v.Ready(*lost)) == [v.Dismiss(*lost, "this worker does not belong to the job any more")]
    assert kinds(driver.tell(v.Ready(last))) == ["Announce"]
    assert driver.ranks() == {first: 0, last: 1}


def test_slots_of_a_host_that_is_gone_are_not_to_blame_and_awaited_ones_keep_hope():
    driver = Driver({"a": 2, "b": 1}, min_num_proc=3)
    driver.begin()
    driver.tell(v.Discovered({"a": 2, "b": 1}, awaited=1))
    driver.tell(v.HostGone("b", "its host was lost"))
    assert (driver.state.failures, driver.state.rests_until) == ({}, {})
    assert not driver.state.over, "it may come back"
    assert kinds(driver.tell(v.Discovered({"a": 2}, awaited=0))) == ["GiveUp"]


def test_fault_3_a_worker_that_others_have_lost_is_killed_before_they_go_on():
    driver = Driver({"a": 3})
    driver.begin()
    assert driver.tell(v.Ready(0, lost=Loss(1))) == driver.tell(v.Ready(2, lost=Loss(1)), later=0.1) == []
    assert driver.state.next_time() == FENCE_S
    assert driver.tell(v.Tick(), later=FENCE_S) == [v.Signal(1, signal.SIGKILL)]
    assert driver.tell(v.Ready(1)) == [v.Dismiss(1, "this worker does not belong to the job any more")]
    actions = driver.tell(v.Ended(1, 137, "killed"))
    assert kinds(actions) == ["Close", "Start", "Announce"]
    assert actions[-1].left == (v.Left(1, 1, FENCED_WHY),)


def test_a_worker_that_cannot_even_be_killed_is_not_waited_for_and_sent_away_when_it_comes():
    driver = Driver({"a": 3})
    driver.begin()
    driver.tell(v.Ready(0, lost=Loss(1)))
    driver.tell(v.Ready(2))
    driver.tell(v.Tick(), later=FENCE_S)
    assert "Announce" in kinds(driver.tell(v.Tick(), later=UNKILLABLE_S))
    assert kinds(driver.tell(v.Ready(1))) == ["Dismiss"]


def test_whoever_asks_for_a_place_lives_whatever_others_say_of_it():
    driver = Driver({"a": 3})
    driver.begin()
    driver.tell(v.Ready(0, lost=Loss(1)))
    driver.tell(v.Ready(1, lost=Loss(0)), later=0.5)
    assert driver.tell(v.Tick(), later=5) == []
    assert kinds(driver.tell(v.Ready(2))) == ["Announce"]


def test_when_the_work_is_done_nobody_is_started_and_newcomers_go():
    driver = Driver({"a": 3})
    driver.begin()
    driver.tell(v.Ended(1, 137, "killed"))
    driver.tell(v.Ready(0))
    driver.tell(v.Ready(2))
    assert driver.tell(v.Ended(0, 0, "exit code 0")) == []
    assert driver.tell(v.Ended(2, 0, "exit code 0")) == [v.Signal(3, signal.SIGTERM)]
    driver.tell(v.Ended(3, 143, "terminated"))
    assert not driver.state.workers
    assert not any(isinstance(action, v.GiveUp) for action in driver.log)


def test_programs_that_never_meet_end_well_one_by_one():
    driver = Driver({"a": 3})
    assert driver.tell(v.Ended(1, 0, "exit code 0")) == []
    driver.tell(v.Ready(0))
    assert kinds(driver.tell(v.Ended(2, 0, "exit code 0"))) == ["Announce"]
    assert driver.tell(v.Ended(0, 0, "exit code 0")) == []
    assert not driver.state.over


def test_a_newcomer_that_waits_is_ended_quietly_when_its_slot_goes():
    driver = Driver({"a": 3})
    driver.begin()
    driver.tell(v.Discovered({"a": 3, "b": 1}))
    driver.tell(v.Ready(3))
    assert driver.tell(v.Discovered({"a": 3})) == [v.Signal(3, signal.SIGTERM)]


def test_ranks_of_a_host_are_neighbours_and_rank_0_is_a_survivor():
    places = places_of([(4, ("b", 1), None), (2, ("b", 0), 3), (7, ("a", 0), None), (1, ("c", 0), 1)])
    assert {birth: place.rank for birth, place in places.items()} == {1: 0, 2: 1, 4: 2, 7: 3}


events = st.one_of(
    st.builds(
        v.Ready,
        st.integers(0, 12),
        st.sampled_from([None, Loss(0), Loss(1), Loss(5), Loss(1, SILENT), Loss(2, SILENT, 0), Loss(0, REFUSED, 3)]),
    ),
    st.builds(v.Probed, st.integers(0, 4), st.frozensets(st.sampled_from([("a", "b"), ("a", "c"), ("b", "c")]))),
    st.builds(v.Ended, st.integers(0, 12), st.sampled_from([0, 1, 137]), st.just("died"), st.booleans()),
    st.builds(v.Discovered, st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), max_size=3), st.integers(0, 2)),
    st.builds(v.HostGone, st.sampled_from("abc"), st.just("gone")),
    st.builds(v.Preempted, st.integers(0, 12)),
    st.builds(v.Listens, st.integers(0, 12)),
    st.builds(v.Fails, st.integers(0, 12), st.just("no checkpoint is usable")),
    st.builds(v.Leaves, st.integers(0, 12), st.just("raised X"), st.integers(1, 255), st.booleans()),
    st.just(v.Tick()),
)


@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(st.tuples(events, st.sampled_from([0.0, 0.3, 5.0])), max_size=40),
    fixed_hosts=st.booleans(),
    cooldown=st.sampled_from([None, (1.0, 8.0)]),
    spares=st.integers(0, 2),
    silence_s=st.sampled_from([0.0, 2.0]),
)
def test_whatever_happens(steps, **limits):
    driver = Driver({"a": 2, "b": 2}, max_num_proc=4, **limits)
    ready, born = set(), set(driver.state.workers)
    for event, later in steps:
        before = driver.state
        if isinstance(event, v.Ready) and event.birth not in before.workers:
            continue
        if isinstance(event, v.Ready) and before.workers[event.birth].phase is not v.Phase.FENCED:
            ready.add(event.birth)
        actions = driver.tell(event, later)
        after = driver.state
        slots = [worker.slot for worker in after.workers.values()]
        assert len(slots) == len(set(slots)), "two workers in a slot"
        assert before.generation <= after.generation <= before.generation + 1
        for action in actions:
            if isinstance(action, v.Start):
                assert action.birth not in born, "a birth id is never used again"
                born.add(action.birth)
            if isinstance(action, v.Announce):
                check_generation(action, before, after, ready)
                ready -= set(action.places)
        assert kinds(actions).count("Excuse") == int(isinstance(event, v.Preempted) and not before.over)
        assert kinds(actions).count("GiveUp") == int(after.over and not before.over)
        moment = after.next_time()
        assert moment is None or moment > driver.now or decide(after, v.Tick(), moment)[0] != after


def check_generation(announced, before, after, ready):
    size = len(announced.places)
    assert sorted(place.rank for place in announced.places.values()) == list(range(size))
    assert {place.size for place in announced.places.values()} == {size}
    assert size <= after.limits.max_num_proc
    assert size >= after.limits.min_num_proc or after.finished
    assert set(announced.places) <= ready, "only those who asked for a place get one"
    assert announced.generation == after.generation == before.generation + 1
    living = {birth for birth in before.members if birth in after.workers}
    for birth in living - set(announced.places):
        assert after.workers[birth].phase is v.Phase.LEAVING, "two groups would train"
    waits = [worker for worker in after.newcomers() if worker.phase is v.Phase.READY]
    assert not waits or size == after.room() or after.finished, "a spare waits although there is room for it"
    if before.members:
        assert after.members[0] in before.members, "rank 0 must have the state"


def seen(number, call=0):
    return SeenFile(call, number, "00" * 8, number, f"/checkpoints/{number}")


def test_the_driver_remembers_the_newest_checkpoint_that_any_worker_has_seen():
    driver = Driver({"a": 3})
    driver.begin()
    driver.tell(v.Saw(0, (seen(5),)))
    driver.tell(v.Ended(0, 137, "killed"))
    driver.tell(v.Ready(1, fresh=True, seen=(seen(4), seen(7, call=1))))
    driver.tell(v.Ready(2, fresh=True))
    assert driver.state.generation == 1
    assert driver.state.seen == {0: seen(5), 1: seen(7, call=1)}


def test_a_worker_whose_replacement_would_fail_too_ends_the_job():
    driver = Driver({"a": 3})
    driver.begin()
    for birth in (0, 1, 2):
        assert driver.tell(v.Fails(birth, "no checkpoint is usable")) == []
    _, end = driver.tell(v.Ended(1, 3, "exit code 3"))
    assert (end.why, end.code, end.worker) == ("no checkpoint is usable", 3, 1)
    assert [one.birth for one in end.failures] == [1]
    assert driver.tell(v.Ended(0, 1, "exit code 1")) == []


def test_a_worker_that_is_killed_or_asks_for_a_place_has_not_failed():
    driver = Driver({"a": 3})
    driver.begin()
    driver.tell(v.Fails(0, "no checkpoint is usable"))
    driver.tell(v.Fails(1, "no checkpoint is usable"))
    driver.tell(v.Ready(1))
    assert "Start" in kinds(driver.tell(v.Ended(0, 137, "killed")))
    assert "Start" in kinds(driver.tell(v.Ended(1, 1, "exit code 1")))
    assert not driver.state.over


def test_reports_of_workers():
    assert reported_by(3, {"seen": [seen(5).packed()]}) == v.Saw(3, (seen(5),))
    assert reported_by(3, {"fails": "why"}) == v.Fails(3, "why")
    assert reported_by(3, {"leaves": "raised X", "code": 7}) == v.Leaves(3, "raised X", 7)
    leaves = {"leaves": "raised \x1b", "code": 300, "blames_peer": True}
    assert reported_by(3, leaves) == v.Leaves(3, r"raised \x1b", 1, blames_peer=True)
    for message in ({}, {"seen": [{}]}, {"seen": 3}):
        with pytest.raises((KeyError, TypeError)):
            reported_by(3, message)
