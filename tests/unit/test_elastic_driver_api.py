# SPDX-License-Identifier: Apache-2.0
"""ElasticDriver and RendezvousServer, as used by programs that start workers themselves.

Here the workers are threads. tests/faults/test_elastic_driver_api.py uses real processes.
"""

import base64
import threading
import time
from unittest.mock import Mock

import pytest
from testkit.awaiting import await_that
from testkit.speed import patience

from horovod.common.rendezvous.client import AuthenticationError, Connection
from horovod.common.topology import SECRET_VARIABLE
from horovod.launcher.elastic.places import Place
from horovod.launcher.elastic.planning import Plan
from horovod.launcher.start.hosts import SlotInfo, get_host_assignments, parse_hosts
from horovod.runner.common.util.timeout import TimeoutException
from horovod.runner.elastic.constants import RESET_LIMIT_EXCEEDED_MESSAGE
from horovod.runner.elastic.discovery import FixedHosts
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.rendezvous import create_rendezvous_handler
from horovod.runner.gloo_run import create_slot_env_vars
from horovod.runner.http.http_server import RendezvousServer

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def driven():
    """Return a function that creates drivers; stop them after the test."""
    drivers = []

    def make(hosts, *limits, rendezvous=None, **options):
        given = rendezvous if rendezvous is not None else Mock(spec=["init"])
        discovery = FixedHosts(hosts) if isinstance(hosts, dict) else hosts
        drivers.append(ElasticDriver(given, discovery, *limits, **{"timeout": patience(30), **options}))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.stop()


def numbers(slot):
    return slot.hostname, slot.rank, slot.size, slot.local_rank, slot.local_size, slot.cross_rank, slot.cross_size


def test_each_slot_gets_a_worker_with_its_planned_place_and_results_are_by_slot(driven):
    driver, places = driven({"a": 2, "b": 1}, 3, 3), {}

    def work(slot, events):
        driver.record_ready(slot.hostname, slot.local_rank)
        places[slot.rank] = slot, driver.get_slot_info(slot.hostname, slot.local_rank)
        assert not any(event.is_set() for event in events)
        return 0, 7.0

    driver.start(3, work)
    results = driver.get_results()
    assert results.error_message is None
    assert results.worker_results == {"a[0]": (0, 7.0), "a[1]": (0, 7.0), "b[0]": (0, 7.0)}
    planned = [("a", 0, 3, 0, 2, 0, 2), ("a", 1, 3, 1, 2, 0, 1), ("b", 2, 3, 0, 1, 1, 2)]
    assert [numbers(places[rank][0]) for rank in range(3)] == planned
    assert [numbers(places[rank][1]) for rank in range(3)] == planned
    (plan,) = [call.args[0] for call in driver._rendezvous.init.call_args_list]
    assert [numbers(slot) for slot in plan] == planned
    assert driver.finished()


def test_programs_that_never_meet_are_a_job_too(driven):
    driver = driven({"a": 2}, 2, 2)
    driver.start(2, lambda slot, events: (0, time.time()))
    assert sorted(driver.get_results().worker_results) == ["a[0]", "a[1]"]


class Ways:
    """Scripted workers by host and slot: each joins a rendezvous, then waits for its end or the next rendezvous."""

    def __init__(self, driver):
        self.driver = driver
        self.changed = threading.Condition()
        self.ends, self.again, self.started = {}, {}, []
        self.held = set()  # slots whose new workers do not request a rank yet

    def work(self, slot, events):
        with self.changed:
            self.started.append((slot.hostname, slot.local_rank))
            while (slot.hostname, slot.local_rank) in self.held and not any(event.is_set() for event in events):
                self.changed.wait(0.02)
        rounds = 0
        while True:
            self.driver.record_ready(slot.hostname, slot.local_rank)
            rounds += 1
            with self.changed:
                key = slot.hostname, slot.local_rank
                while key not in self.ends and self.again.get(key, 1) <= rounds:
                    if any(event.is_set() for event in events):
                        return 143, 0.0
                    self.changed.wait(0.02)
                if key in self.ends:
                    return self.ends.pop(key), 0.0

    def end(self, code, *keys):
        with self.changed:
            self.ends |= dict.fromkeys(keys, code)

    def meet_again(self, rounds, *keys):
        with self.changed:
            self.again |= dict.fromkeys(keys, rounds)


def test_a_lost_worker_leads_to_a_new_plan_and_is_made_up_for(driven):
    driver = driven({"a": 3}, 2, 3)
    ways = Ways(driver)
    driver.start(3, ways.work)
    await_that(lambda: driver._rendezvous.init.call_count == 1)
    assert (driver.world_size(), driver.local_size("a")) == (3, 3)
    ways.held.add(("a", 1))  # a replacement that requests a rank early would be in the second plan
    ways.end(-9, ("a", 1))
    ways.meet_again(2, ("a", 0), ("a", 2))
    await_that(lambda: ways.started.count(("a", 1)) == 2)
    await_that(lambda: driver._rendezvous.init.call_count == 2)
    assert (driver.world_size(), driver.get_coordinator_info().rank) == (2, 0)
    assert driver.get_slot_info("a", 2).rank == 1
    assert not driver.has_rank_assignment("a", 1), "the replacement waits for the next plan"
    assert driver.get_slot_info("a", 1) == SlotInfo("a", -1, -1, -1, -1, -1, -1)
    ways.held.clear()
    for rounds in range(3, 100):  # the replacement is in the first plan made after its request
        ways.meet_again(rounds, ("a", 0), ("a", 2))
        await_that(lambda: driver._rendezvous.init.call_count == rounds)  # noqa: B023 - it is called at once
        if driver.world_size() == 3:
            break
    assert driver.world_size() == 3
    assert driver.get_slot_info("a", 1).rank == 2
    assert [slot.rank for slot in driver.host_assignments["a"]] == [0, 1, 2]
    driver.resume()
    ways.end(0, ("a", 0), ("a", 1), ("a", 2))
    results = driver.get_results()
    assert results.error_message is None
    assert {code for code, _ in results.worker_results.values()} == {0}
    assert sorted(results.worker_results) == ["a[0]", "a[1]", "a[2]"]


def test_hosts_that_come_and_go_lead_to_new_plans(driven):
    hosts = FixedHosts({"a": 1})
    driver = driven(hosts, 1, 2)
    ways = Ways(driver)
    driver.start(1, ways.work)
    await_that(lambda: driver._rendezvous.init.call_count == 1)
    hosts.set({"a": 1, "b": 1})
    await_that(lambda: ways.started == [("a", 0), ("b", 0)])
    ways.meet_again(2, ("a", 0))
    await_that(lambda: driver.world_size() == 2)
    hosts.set({"b": 1})
    await_that(lambda: driver._host_manager.current_hosts.host_slots == {"b": 1})
    ways.meet_again(3, ("a", 0))
    ways.meet_again(2, ("b", 0))
    await_that(lambda: driver.world_size() == 1)
    assert driver.get_coordinator_info().hostname == "b"
    ways.end(0, ("a", 0), ("b", 0))
    assert driver.get_results().error_message is None


def test_the_reset_limit_ends_the_job(driven):
    driver = driven({"a": 2}, 1, 2, reset_limit=0)
    ways = Ways(driver)
    driver.start(2, ways.work)
    await_that(lambda: driver._rendezvous.init.call_count == 1)
    ways.end(1, ("a", 1))
    ways.meet_again(2, ("a", 0))
    results = driver.get_results()
    assert RESET_LIMIT_EXCEEDED_MESSAGE.format(0) in results.error_message
    assert results.worker_results["a[0]"] == (143, 0.0), "its events were set"


def test_a_function_that_fails_is_a_worker_that_fails(driven):
    def fail(slot, events):
        raise ZeroDivisionError("no worker here")

    driver = driven({"a": 1}, 1, 1)
    driver.start(1, fail)
    results = driver.get_results()
    assert "create_worker_fn raised ZeroDivisionError: no worker here" in results.error_message
    assert results.worker_results["a[0]"][0] == 1

    driver = driven({"a": 1}, 1, 1)
    driver.start(1, lambda slot, events: None)
    assert "create_worker_fn must return (exit code, time), not None" in driver.get_results().error_message


def test_a_blacklisted_host_ends_its_workers_and_is_not_used(driven):
    driver = driven({"a": 1, "b": 1}, 1, 2)
    ways = Ways(driver)
    driver.start(2, ways.work)
    await_that(lambda: driver._rendezvous.init.call_count == 1)
    driver._host_manager.blacklist("b")
    ways.meet_again(2, ("a", 0))
    await_that(lambda: driver.world_size() == 1)
    assert driver.get_coordinator_info().hostname == "a"
    ways.end(0, ("a", 0))
    assert driver.get_results().error_message is None


def test_stop_ends_the_workers_and_gives_the_caller_his_text(driven):
    driver = driven({"a": 2}, 1, 2)
    driver.start(2, Ways(driver).work)
    await_that(lambda: driver._rendezvous.init.call_count == 1)
    driver.stop("that is enough")
    results = driver.get_results()
    assert results.error_message == "that is enough"
    assert results.worker_results == {"a[0]": (143, 0.0), "a[1]": (143, 0.0)}
    driver.stop()


def test_a_driver_that_never_starts_can_be_stopped(driven):
    driver = driven({"a": 2}, 1, 2)
    driver.stop()
    assert driver.get_results().worker_results == {}


def test_a_start_after_stop_leaves_nothing_behind():
    rendezvous = RendezvousServer()
    before = set(threading.enumerate())
    driver = ElasticDriver(rendezvous, FixedHosts({"a": 2}), 1, 2)
    driver.stop()
    driver.start(1, lambda slot, events: (0, 0.0))
    assert rendezvous.server is None
    assert set(threading.enumerate()) <= before


def test_stop_during_the_first_discovery_ends_the_discovery():
    asked, go_on = threading.Event(), threading.Event()

    class Slow(FixedHosts):
        def find_available_hosts_and_slots(self):
            asked.set()
            assert go_on.wait(patience(30))
            return super().find_available_hosts_and_slots()

        def stop(self):
            go_on.set()

    before = set(threading.enumerate())
    driver = ElasticDriver(Mock(spec=["init"]), Slow({"a": 2}), 1, 2)
    starting = threading.Thread(target=driver.start, args=(1, lambda slot, events: (0, 0.0)))
    starting.start()
    assert asked.wait(patience(30))
    driver.stop()
    starting.join(patience(30))
    assert set(threading.enumerate()) <= before


def test_hosts_that_are_back_after_an_empty_answer_are_noticed(driven):
    class Gone(FixedHosts):
        answers = iter([{"a": 2}, {}])

        def find_available_hosts_and_slots(self):
            return next(self.answers, {"a": 2})

    driver = driven(Gone({}), 1, 2, timeout=patience(60))
    driver.wait_for_available_slots(2)
    await_that(lambda: not driver._host_manager.current_hosts.available_hosts)
    began = time.monotonic()
    assert driver.wait_for_available_slots(2).host_slots == {"a": 2}
    assert time.monotonic() - began < patience(30)


def test_a_function_that_exits_is_a_worker_that_fails(driven):
    driver = driven({"a": 1}, 1, 1, reset_limit=0)

    def leave(slot, events):
        raise SystemExit(3)

    driver.start(1, leave)
    assert driver.get_results().worker_results["a[0]"][0] != 0


def test_a_worker_that_ends_unnoticed_keeps_its_place_in_the_plan():
    announced = []
    plan = Plan(lambda slots: announced.append([(slot.hostname, slot.rank) for slot in slots]))
    numbers = {"local_rank": 0, "local_size": 1, "size": 2, "cross_size": 2}
    places = {birth: {**numbers, "rank": birth, "cross_rank": birth} for birth in (0, 1)}
    for birth, host in enumerate("ab"):
        plan.begin(birth, (host, 0), Place(**places[birth]), {})
    plan.end(1)
    plan.announce(places, 0)
    assert announced == [[("a", 0), ("b", 1)]]


def test_too_few_slots_are_waited_for_no_longer_than_the_timeout(driven):
    driver = driven({"a": 1, "b": 1}, 1, 4, timeout=0.1)
    assert driver.wait_for_available_slots(2, min_hosts=2).count_available_slots() == 2
    with pytest.raises(TimeoutException, match=r"after 0.1 s \(timeout\) 2 slots on 2 hosts .* 3 slots on at least 1"):
        driver.start(3, lambda slot, events: (0, 0.0))


def test_a_discovery_that_fails_at_first_is_asked_again(driven):
    class Late(FixedHosts):
        failures = 1

        def find_available_hosts_and_slots(self):
            self.failures -= 1
            if self.failures >= 0:
                raise OSError("not yet")
            return super().find_available_hosts_and_slots()

    driver = driven(Late({"a": 2}), 1, 2)
    assert driver.wait_for_available_slots(2).host_slots == {"a": 2}


@pytest.mark.parametrize(
    ("limits", "options", "text"),
    [
        ((3, 2), {}, "min_num_proc 3 is larger than max_num_proc 2"),
        ((0, 2), {}, "min_num_proc must be between 1 and"),
        ((1, 2), {"timeout": 0}, "timeout must be a positive number of seconds, not 0"),
        ((1, 2), {"reset_limit": -1}, "must be at least 0, not -1"),
        ((1, 2), {"cooldown_range": (100, 10)}, "1 <= min <= max <= 3600, not 100 10"),
        ((1, 2), {"cooldown_range": (10,)}, "takes two numbers of seconds, .* not 10"),
    ],
)
def test_limits_that_no_job_has_are_refused(driven, limits, options, text):
    with pytest.raises(ValueError, match=text):
        driven({"a": 1}, *limits, **options)


def test_a_start_outside_the_limits_and_a_second_one_are_refused(driven):
    driver = driven({"a": 3}, 1, 2)
    with pytest.raises(ValueError, match="num_proc 3 and max_num_proc 2 must be in ascending order"):
        driver.start(3, lambda slot, events: (0, 0.0))
    driver.start(1, lambda slot, events: (0, 0.0))
    with pytest.raises(RuntimeError, match="was called already"):
        driver.start(1, lambda slot, events: (0, 0.0))


def test_a_rendezvous_takes_a_plan_and_only_ranks_that_know_the_secret():
    rendezvous = RendezvousServer()
    port = rendezvous.start()
    try:
        plan = get_host_assignments(parse_hosts("a:2"), 2)
        rendezvous.init(plan)
        assert rendezvous.plan == plan
        secret = base64.b64decode(rendezvous.variables()[SECRET_VARIABLE])
        met = []

        def meet(slot):
            with Connection.open("127.0.0.1", port, secret, patience(20)) as connection:
                met.append(connection.meet(slot.rank, slot.size, 0, {"rank": slot.rank}, patience(20)).infos)

        threads = [threading.Thread(target=meet, args=(slot,)) for slot in plan]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patience(40))
        assert met == [[{"rank": 0}, {"rank": 1}]] * 2
        with pytest.raises(AuthenticationError):
            Connection.open("127.0.0.1", port, bytes(32), patience(20))
        with pytest.raises(RuntimeError, match="was started already"):
            rendezvous.start()
    finally:
        rendezvous.stop()
    rendezvous.stop()


def test_the_environment_of_a_slot_has_the_secret_which_nothing_prints(driven):
    rendezvous, seen = RendezvousServer(), []
    driver = driven({"a": 1}, 1, 1, rendezvous=rendezvous)

    def work(slot, events):
        seen.append((slot, create_slot_env_vars(slot)))
        return 0, 0.0

    driver.start(1, work)
    driver.get_results()
    ((slot, variables),) = seen
    secret = rendezvous.variables()[SECRET_VARIABLE]
    assert variables["HOROVOD_GLOO_RENDEZVOUS_PORT"].isdecimal()
    assert (variables[SECRET_VARIABLE], variables["HOROVOD_BIRTH_ID"], variables["HOROVOD_ELASTIC"]) == (
        secret,
        "0",
        "1",
    )
    assert secret not in repr(slot)
    driver.stop()
    assert rendezvous.server is None, "who has started it stops it"


def test_a_rendezvous_without_its_driver_is_refused(driven):
    rendezvous = RendezvousServer()
    with pytest.raises(TypeError, match=r"takes what create_rendezvous_handler\(driver\) returns, not <class"):
        rendezvous.start(Mock)
    rendezvous.start()
    try:
        driver = driven({"a": 1}, 1, 1, rendezvous=rendezvous)
        with pytest.raises(ValueError, match="the RendezvousServer was started without this driver"):
            driver.start(1, lambda slot, events: (0, 0.0))
        assert create_rendezvous_handler(driver) is driver.rendezvous_handler
    finally:
        rendezvous.stop()
