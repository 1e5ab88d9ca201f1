# SPDX-License-Identifier: Apache-2.0
"""HostDiscovery and HostManager, as used by programs that start the workers of an elastic job themselves."""

import pytest

from horovod.common.notifications import HostUpdateResult
from horovod.launcher.elastic import discovery
from horovod.launcher.elastic.discovery import FixedHosts, HostDiscovery, HostDiscoveryScript, HostManager, HostState
from horovod.launcher.elastic.polling import DiscoveryError


def test_a_script_says_which_hosts_there_are():
    assert HostDiscoveryScript("echo a:2; echo b", 3).find_available_hosts_and_slots() == {"a": 2, "b": 3}
    with pytest.raises(DiscoveryError, match="ended with exit code 1"):
        HostDiscoveryScript("exit 1", None).find_available_hosts_and_slots()


def test_a_script_that_was_stopped_can_be_run_again():
    script = HostDiscoveryScript("echo a:2", None)
    script.stop()
    assert script.find_available_hosts_and_slots() == {"a": 2}


def test_a_discovery_without_an_answer_is_an_error():
    with pytest.raises(NotImplementedError):
        HostDiscovery().find_available_hosts_and_slots()


def test_a_manager_remembers_the_hosts_and_says_what_has_changed():
    hosts = FixedHosts({"a": 2, "b": 1})
    manager = HostManager(hosts)
    assert manager.current_hosts.count_available_slots() == 0
    assert manager.update_available_hosts() == HostUpdateResult.added
    assert manager.update_available_hosts() == HostUpdateResult.no_update
    hosts.set({"c": 1, "b": 2})
    assert manager.update_available_hosts() == HostUpdateResult.mixed
    hosts.set({"c": 1, "b": 1, "d": 0})
    assert manager.update_available_hosts() == HostUpdateResult.removed
    found = manager.current_hosts
    assert found.host_assignment_order == ["b", "c"], "the oldest first"
    assert (found.available_hosts, found.host_slots, found.get_slots("a")) == ({"b", "c"}, {"b": 1, "c": 1}, 0)


def test_a_blacklisted_host_is_not_offered_and_its_workers_are_told():
    manager = HostManager(FixedHosts({"a": 2, "b": 1}))
    manager.update_available_hosts()
    event = manager.get_host_event("a")
    assert not event.is_set()
    manager.blacklist("a")
    assert event.is_set()
    assert manager.is_blacklisted("a")
    assert manager.current_hosts.host_slots == {"b": 1}
    assert manager.update_available_hosts() == HostUpdateResult.removed
    assert not manager.is_blacklisted("b")


def test_with_a_cooldown_a_host_comes_back(monkeypatch):
    now = 100.0
    monkeypatch.setattr(discovery.time, "monotonic", lambda: now)
    manager = HostManager(FixedHosts({"a": 1}), cooldown_range=(1, 3))
    for rest_s in (1, 2, 3, 3):
        manager.update_available_hosts()
        event = manager.get_host_event("a")
        manager.blacklist("a")
        now += rest_s - 0.5
        assert manager.update_available_hosts() in (HostUpdateResult.removed, HostUpdateResult.no_update)
        assert manager.current_hosts.count_available_slots() == 0
        now += 0.5
        assert manager.update_available_hosts() == HostUpdateResult.added
        assert event.is_set(), "the workers of that time are to end all the same"
        assert not manager.get_host_event("a").is_set()


def test_a_host_without_a_cooldown_never_comes_back():
    state = HostState()
    state.blacklist()
    assert state.is_blacklisted()
    assert not state.is_resurrected()
    state.whitelist()
    assert not state.is_blacklisted()
    state.set_event()
    assert state.get_event().is_set()
