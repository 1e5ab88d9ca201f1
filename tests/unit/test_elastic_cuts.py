# SPDX-License-Identifier: Apache-2.0
"""The elastic driver's decisions about workers that cannot reach each other, by table and without any network."""

import signal

import pytest
from faultkit.membership import Driver, kinds
from hypothesis import given, settings
from hypothesis import strategies as st

from horovod.common.joining.loss import ENDED, REFUSED, SILENT, Loss, loss_in
from horovod.launcher.elastic import cut_rules, cuts, words
from horovod.launcher.elastic import vocabulary as v
from horovod.launcher.elastic.choice import BadPairs
from horovod.launcher.elastic.event_rules import FENCE_S
from horovod.launcher.elastic.generation_rules import CUT_OFF_WHY
from horovod.launcher.elastic.state import LOSS_S
from horovod.launcher.elastic.vocabulary import ADDED, CutOff, Healed, Probe, Probed

SLOTS = {0: ("a", 0), 1: ("b", 0), 2: ("c", 0)}


def started(hosts=None, **limits):
    """Start a driver, by default with ranks 0, 1 and 2 on the hosts a, b and c."""
    driver = Driver(hosts or {"a": 1, "b": 1, "c": 1}, **({"min_num_proc": 1} | limits))
    driver.begin()
    return driver


def lose(driver, rank, by, how=SILENT, births=None):
    """Let all members request a rank after one loss; return the actions after the last request."""
    actions = []
    for birth in driver.state.members if births is None else births:
        actions = driver.tell(v.Ready(birth, Loss(rank, how, by)))
    return actions


def answer(driver, *cut, later=0.0):
    """Report the results of the current round of probes."""
    assert driver.state.cuts.round is not None, "no host probes another"
    return driver.tell(Probed(driver.state.cuts.round.number, frozenset(cut)), later)


def cut(driver, *pairs, rank=2, by=1):
    lose(driver, rank, by)
    return answer(driver, *pairs)


def only(actions, kind):
    (found,) = [one for one in actions if isinstance(one, kind)]
    return found


def bad_hosts(*pairs):
    return BadPairs(hosts=frozenset(pairs))


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("rank 2 is lost (on host 'b'): its process ended", Loss(2)),
        ("rank 2 is lost (on host 'b'): connection closed", Loss(2)),
        (
            "rank 2 is lost (on host 'b'): it has given no sign of life for 10 s (frozen, or ...), says rank 1",
            Loss(2, SILENT, 1),
        ),
        (
            "UnknownError: rank 2 is lost (on host 'b'): the connection to it broke (its host has acknowledged nothing "
            "for 10 s), says rank 0\nmore",
            Loss(2, SILENT, 0),
        ),
        (
            "rank 0 is lost (on host 'a'): rank 2 could not connect to rank 0 at 10.0.0.1:4 (tried 30.0 s): no answer",
            Loss(0, SILENT, 2),
        ),
        (
            "rank 0 is lost (on host 'a'): the connection to it broke (rank 2 could not connect to rank 0 at "
            "10.0.0.1:4 (tried for 2.0 s): Invalid argument), says rank 2",
            Loss(0, SILENT, 2),
        ),
        (
            "rank 0 is lost (on host 'a'): the connection to it broke (Invalid argument), says rank 2",
            Loss(0, ENDED, 2),
        ),
        (
            "rank 0 is lost (on host 'a'): its process ended before it had connected, says rank 3",
            Loss(0, REFUSED, 3),
        ),
        (
            "rank 2 is lost (on host 'b'): it gave no sign of life for 60 s (it was frozen; ...)",
            Loss(2),
        ),
        ("the connection timed out; rank 2 is lost (on host 'b'): its process ended", Loss(2)),
    ],
)
def test_how_a_rank_was_lost(text, loss):
    assert loss_in(text, loss.rank) == loss
    assert Loss.unpacked(loss.packed()) == loss


@pytest.mark.parametrize("packed", [[], [1], ["1", ENDED, None], [1, "eaten", None], [1, ENDED, "2"], "abc", 7])
def test_a_malformed_loss_is_refused(packed):
    with pytest.raises((TypeError, ValueError)):
        Loss.unpacked(packed)


def test_a_silent_rank_on_another_host_makes_all_hosts_try_to_reach_each_other():
    driver = started()
    probe = only(driver.tell(v.Ready(1, Loss(2, SILENT, 1))), Probe)
    assert probe.pairs == (("a", "b"), ("a", "c"), ("b", "c"))
    driver.tell(v.Ready(0, Loss(2, SILENT, 1)))
    assert driver.tell(v.Ready(2, Loss(2, SILENT, 1))) == [], "nobody goes on before the hosts have tried"
    cut_off, announced = answer(driver, ("b", "c"))
    assert cut_off == CutOff(bad_hosts(("b", "c")), (0, 1), (2,))
    assert driver.ranks() == {0: 0, 1: 1}
    assert announced.left == (v.Left(2, 2, CUT_OFF_WHY),)
    who = "2 workers on a, b go on, and worker 2 on c waits until they do"
    assert words.cut_off(cut_off, SLOTS) == f"hosts b and c do not reach each other: {who}"
    assert not any(isinstance(action, v.Signal | v.Dismiss) for action in driver.log), "it has the state"


@pytest.mark.parametrize("loss", [Loss(2), Loss(2, ENDED, 1), Loss(9, SILENT, 1), Loss(2, SILENT, 9)])
def test_a_rank_that_ended_is_no_reason_to_suspect_the_network(loss):
    driver = started()
    assert not any(isinstance(action, Probe) for action in driver.tell(v.Ready(1, loss)))


def test_a_rank_of_the_same_host_is_frozen_and_not_cut_off():
    driver = started({"a": 3})
    assert driver.tell(v.Ready(1, Loss(2, SILENT, 1))) == []
    assert driver.tell(v.Tick(), later=FENCE_S) == [v.Signal(2, signal.SIGKILL)]


def test_a_frozen_rank_whose_host_is_reached_is_killed():
    driver = started()
    driver.tell(v.Ready(0, Loss(2, SILENT, 1)))
    driver.tell(v.Ready(1, Loss(2, SILENT, 1)))
    assert answer(driver, later=0.1) == []
    assert driver.tell(v.Tick(), later=FENCE_S) == []
    assert driver.tell(v.Tick(), later=cut_rules.DOUBT_S) == [v.Signal(2, signal.SIGKILL)]
    assert kinds(driver.tell(v.Ended(2, 137, "killed")))[-1] == "Announce"


def test_a_busy_rank_behind_a_cut_is_waited_for():
    driver = started()
    driver.tell(v.Ready(0, Loss(2, SILENT, 1)))
    driver.tell(v.Ready(1, Loss(2, SILENT, 1)))
    assert answer(driver, ("b", "c"), later=3) == []
    assert kinds(driver.tell(v.Tick(), later=30)) == ["Probe"], "what was found out is old by now"
    assert driver.tell(v.Ready(2, Loss(1, SILENT, 2))) == []
    assert kinds(answer(driver, ("b", "c"))) == ["CutOff", "Announce"]


def test_a_rank_that_answers_is_busy_though_others_have_lost_it_and_its_host_is_reached():
    driver = started(silence_s=30.0)
    driver.tell(v.Listens(2))
    driver.tell(v.Ready(0, Loss(2, SILENT, 1)))
    driver.tell(v.Ready(1, Loss(2, SILENT, 1)))
    answer(driver)
    assert kinds(driver.tell(v.Tick(), later=1)) == ["Call"]
    driver.tell(v.Told(2, (1,), waits=False))
    for seconds in range(40):
        actions = driver.tell(v.Tick(), later=1)
        if any(isinstance(action, Probe) for action in actions):
            answer(driver)
        assert seconds > 25 or v.Signal(2, signal.SIGKILL) not in driver.log
    assert v.Signal(2, signal.SIGKILL) in driver.log, "it has not answered for 30 s"


def test_a_rank_that_does_not_answer_is_killed_soon():
    driver = started(silence_s=30.0)
    driver.tell(v.Listens(2))
    driver.tell(v.Ready(0, Loss(2, SILENT, 1)))
    driver.tell(v.Ready(1, Loss(2, SILENT, 1)))
    answer(driver)
    for _ in range(5):
        driver.tell(v.Tick(), later=1)
    assert v.Signal(2, signal.SIGKILL) in driver.log


@pytest.mark.parametrize(
    ("hosts", "pairs", "going_on"),
    [
        ({"a": 1, "b": 1, "c": 1}, [("b", "c")], {0, 1}),  # b reaches a, a reaches c, but b does not reach c
        ({"a": 1, "b": 1, "c": 1}, [("a", "c")], {0, 1}),
        ({"a": 1, "b": 1, "c": 1}, [("a", "b"), ("a", "c")], {1, 2}),
        ({"a": 1, "b": 2}, [("a", "b")], {1, 2}),  # the larger side continues
        ({"a": 1, "b": 1}, [("a", "b")], {0}),
        ({"a": 2, "b": 2, "c": 1}, [("a", "b"), ("a", "c")], {2, 3, 4}),
    ],
)
def test_the_largest_connected_part_goes_on(hosts, pairs, going_on):
    driver = started(hosts, num_proc=sum(hosts.values()))
    last = len(driver.state.members) - 1
    actions = cut(driver, *pairs, rank=last, by=0)
    assert set(only(actions, v.Announce).places) == going_on
    assert driver.state.workers.keys() == set(range(last + 1)), "all others live"


def test_all_state_is_on_the_smaller_side():
    driver = started({"a": 1, "b": 3}, num_proc=4)
    driver.tell(v.Ready(0, Loss(3, SILENT, 0)))
    for birth in (1, 2, 3):
        driver.tell(v.Ready(birth, Loss(0, SILENT, 3), fresh=True))
    assert set(only(answer(driver, ("a", "b")), v.Announce).places) == {0}


def test_before_training_has_begun_the_larger_side_begins():
    driver = started({"a": 1, "b": 3}, num_proc=4)
    for birth in range(4):
        driver.tell(v.Ready(birth, Loss(3, SILENT, 0), fresh=True))
    assert set(only(answer(driver, ("a", "b")), v.Announce).places) == {1, 2, 3}


def test_those_that_wait_come_back_when_the_network_is_healed():
    driver = started()
    cut(driver, ("b", "c"))
    assert driver.tell(v.Tick(), later=5) == [], "they do not try yet, and nobody is disturbed"
    assert driver.state.next_time() == 10
    assert driver.tell(v.Tick(), later=5) == [Probe(1, (("b", "c"),))]
    healed, notified = answer(driver, later=0.2)
    assert words.healed(healed) == "hosts b and c reach each other again"
    assert notified == v.Notify((0, 1), 1, ADDED)
    driver.tell(v.Ready(0))
    announced = only(driver.tell(v.Ready(1)), v.Announce)
    assert (announced.came, driver.ranks()) == ((2,), {0: 0, 1: 1, 2: 2})


def test_one_that_waited_has_an_old_state_and_is_never_rank_0():
    driver = started()
    cut(driver, ("a", "b"), ("a", "c"), rank=1, by=0)
    assert driver.ranks() == {1: 0, 2: 1}
    driver.tell(v.Tick(), later=10)
    answer(driver)
    for birth in (1, 2):
        driver.tell(v.Ready(birth))
    assert driver.ranks() == {1: 0, 2: 1, 0: 2}


def test_one_that_waited_does_not_go_on_without_those_that_have_trained_since():
    driver = started()
    cut(driver, ("a", "b"), ("a", "c"), rank=1, by=0)
    driver.tell(v.Ended(1, 137, "killed"))
    driver.tell(v.Ready(2, Loss(0)))
    assert driver.ranks() == {2: 0}
    driver.tell(v.HostGone("c", "its host was lost"))
    words_at_the_end = only(driver.log, v.GiveUp).why
    assert "worker 0 on a did not reach all others, waited, and lacks what was trained since" in words_at_the_end


def test_hosts_that_stay_cut_off_try_less_and_less_often():
    driver = started()
    cut(driver, ("b", "c"))
    moments = []
    for _ in range(6):
        moment = driver.state.next_time()
        driver.tell(v.Tick(), later=moment - driver.now)
        assert answer(driver, ("b", "c")) == []
        moments.append(moment)
    assert moments == [10, 30, 70, 150, 230, 310]


def test_a_link_that_flaps_is_tried_less_often_each_time():
    driver = started()
    waits = []
    for _ in range(3):
        began = driver.now
        cut(driver, ("b", "c"))
        assert driver.ranks() == {0: 0, 1: 1}
        driver.tell(v.Tick(), later=driver.state.next_time() - driver.now)
        answer(driver)
        waits.append(driver.now - began)
        for birth in (0, 1):
            driver.tell(v.Ready(birth))
        assert driver.ranks() == {0: 0, 1: 1, 2: 2}
    assert waits == [10, 20, 40]
    assert kinds([one for one in driver.log if isinstance(one, CutOff | Healed)]) == ["CutOff", "Healed"] * 3
    driver.tell(v.Tick(), later=100)  # the hosts have reached each other for a long time
    cut(driver, ("b", "c"))
    assert driver.state.next_time() - driver.now == 10


def test_below_min_np_the_driver_waits_visibly_and_goes_on_when_the_network_is_healed():
    driver = started(min_num_proc=3, timeout_s=60)
    actions = cut(driver, ("b", "c"))
    assert kinds(actions) == ["Waiting"]
    said = words.waiting(actions[0], 60)
    assert said == (
        "2 of at least 3 workers are ready and reach each other: waiting for more, at most 60 s; "
        "hosts b and c do not reach each other"
    )
    assert kinds(driver.tell(v.Tick(), later=10)) == ["Probe"]
    assert kinds(answer(driver)) == ["Healed", "Announce"]
    assert driver.ranks() == {0: 0, 1: 1, 2: 2}


def test_below_min_np_the_time_limit_names_the_hosts():
    driver = started(min_num_proc=3, timeout_s=60)
    cut(driver, ("b", "c"))
    given_up = only(driver.tell(v.Tick(), later=60), v.GiveUp)
    assert "hosts b and c do not reach each other" in given_up.why


def fail_twice(driver):
    """Let ranks 1 and 2 lose each other in two generations while all hosts reach each other."""
    lose(driver, 2, by=1)
    assert kinds(answer(driver)) == ["Announce"], "once may be an accident"
    assert driver.ranks() == {0: 0, 1: 1, 2: 2}
    driver.now += 10
    lose(driver, 1, by=2)
    return answer(driver)


def test_two_ranks_that_fail_twice_count_as_cut_though_their_hosts_reach_each_other():
    driver = started()
    cut_off, _ = fail_twice(driver)
    assert cut_off == CutOff(BadPairs(workers=frozenset([(1, 2)])), (0, 1), (2,))
    assert words.cut_off(cut_off, SLOTS).startswith("workers 1 and 2 do not reach each other: 2 workers on a, b go on")
    actions = driver.tell(v.Tick(), later=driver.state.next_time() - driver.now)
    assert words.healed(actions[0]) == "workers 1 and 2 try to reach each other again"
    assert actions[1:] == [v.Notify((0, 1), 2, ADDED)]
    for birth in (0, 1):
        driver.tell(v.Ready(birth))
    assert driver.ranks() == {0: 0, 1: 1, 2: 2}
    driver.now += 10
    lose(driver, 2, by=1)
    assert only(answer(driver), CutOff).waiting == (2,), "once is enough now"


def test_two_ranks_that_fail_twice_but_trained_for_long_in_between_are_not_cut_off():
    driver = started()
    driver.now += cuts.LASTING_S
    lose(driver, 2, by=1)
    answer(driver)
    driver.now += cuts.LASTING_S
    lose(driver, 2, by=1)
    assert kinds(answer(driver)) == ["Announce"]
    assert driver.ranks() == {0: 0, 1: 1, 2: 2}


def test_a_slow_detection_does_not_count_as_training_for_long():
    driver = started(silence_s=2 * cuts.LASTING_S)
    for _ in range(2):
        driver.now += cuts.LASTING_S
        lose(driver, 2, by=1)
        actions = answer(driver)
    assert only(actions, CutOff).waiting == (2,)


def test_a_rank_that_repeats_what_another_said_is_not_suspected():
    driver = started()
    fail_twice(driver)
    assert driver.state.cuts.bad == BadPairs(workers=frozenset([(1, 2)]))


def test_a_refused_connection_is_as_good_as_silence():
    driver = started()
    lose(driver, 1, by=2, how=REFUSED)
    assert kinds(answer(driver, ("b", "c"))) == ["CutOff", "Announce"]


def test_nobody_answers_the_question_for_probes():
    driver = started()
    lose(driver, 2, by=1)
    assert driver.state.next_time() <= driver.now + cuts.PATIENCE_S
    driver.tell(v.Tick(), later=cuts.PATIENCE_S)
    assert driver.ranks() == {0: 0, 1: 1}, "those that lost each other are cut"
    assert driver.tell(Probed(0)) == [], "too late"


def test_a_host_that_is_gone_is_not_probed_any_more():
    driver = started()
    cut(driver, ("b", "c"))
    driver.tell(v.HostGone("c", "its host was lost"))
    assert not driver.state.cuts.bad
    assert driver.tell(v.Tick(), later=10) == []


def test_a_replacement_on_a_host_that_is_cut_off_waits_too():
    driver = started()
    cut(driver, ("b", "c"))
    started_ = only(driver.tell(v.Ended(2, 137, "killed")), v.Start)
    assert started_.slot == ("c", 0)
    assert driver.tell(v.Ready(started_.birth, fresh=True), later=LOSS_S) == []
    driver.tell(v.Tick(), later=10)
    assert kinds(answer(driver)) == ["Healed", "Notify"]


def test_when_the_work_is_done_those_that_waited_are_sent_home():
    driver = started()
    cut(driver, ("b", "c"))
    driver.tell(v.Ended(0, 0, "exit code 0"))
    assert driver.tell(v.Ended(1, 0, "exit code 0")) == [v.Dismiss(2, "the job is done")]


def test_a_cut_that_moves_lets_others_go_on():
    """First b waits. Then a loses c but reaches b again: c waits instead, because a's state is as new as c's."""
    driver = started()
    cut(driver, ("b", "c"), ("a", "b"), rank=1, by=0)
    assert driver.ranks() == {0: 0, 2: 1}
    lose(driver, 1, by=0)  # rank 1 is worker 2 now
    answer(driver, ("a", "c"), ("b", "c"))
    assert driver.ranks() == {0: 0, 1: 1}


class Network:
    """Simulated network: four hosts with six links, some of which are cut, and workers that react to the driver."""

    def __init__(self):
        self.driver = started(dict.fromkeys("abcd", 1), num_proc=4)
        self.cut = set()
        self.generations = 1
        self.members = self.driver.state.members

    def react(self, actions):
        for action in actions:
            assert not isinstance(action, v.Signal | v.Dismiss | v.GiveUp), "a cut is nobody's fault"
            if isinstance(action, Probe):
                pairs = frozenset(self.cut.intersection(action.pairs))
                self.react(self.driver.tell(Probed(action.number, pairs), later=0.1))
            elif isinstance(action, v.Notify) and action.generation == self.driver.state.generation:
                self.come_together(None)
            elif isinstance(action, v.Announce):
                self.check(action)

    def check(self, announced):
        self.generations += 1
        hosts = sorted(self.driver.state.workers[birth].slot[0] for birth in announced.places)
        known = self.driver.state.cuts.bad.hosts
        assert not known.intersection((one, other) for one in hosts for other in hosts)
        rank_0 = next(birth for birth, place in announced.places.items() if place.rank == 0)
        assert rank_0 in self.members, "rank 0 has the newest state"
        self.members = self.driver.state.members

    def come_together(self, loss):
        self.members = self.driver.state.members
        for birth in self.members:
            if self.driver.state.workers[birth].phase is v.Phase.MEMBER:
                self.react(self.driver.tell(v.Ready(birth, loss), later=0.01))

    def pass_time(self, seconds):
        self.react(self.driver.tell(v.Tick(), later=seconds))
        members = self.driver.state.members
        hosts = {self.driver.state.workers[birth].slot[0]: rank for rank, birth in enumerate(members)}
        for one, other in sorted(self.cut):
            if one in hosts and other in hosts:
                return self.come_together(Loss(hosts[other], SILENT, hosts[one]))
        return None


PAIRS = [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PAIRS), st.sampled_from([0.5, 3.0, 12.0, 100.0])), max_size=30))
def test_whatever_is_cut_and_healed_nobody_is_killed_and_all_meet_in_the_end(changes):
    network = Network()
    for pair, seconds in changes:
        network.cut ^= {pair}
        network.pass_time(seconds)
        assert network.generations <= 3 * (len(changes) + 1)
    network.cut.clear()
    for _ in range(20):
        network.pass_time(50)
    assert len(network.driver.state.members) == 4
    assert not network.driver.state.cuts.bad
