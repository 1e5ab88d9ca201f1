# SPDX-License-Identifier: Apache-2.0
"""Host discovery of an elastic job: the user's HostDiscovery, and HostManager, which keeps its answers.

HostManager does not offer hosts that a caller has blacklisted. membership.py decides what follows for the workers.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from horovod.common.notifications import HostUpdateResult
from horovod.launcher.elastic.polling import Script
from horovod.launcher.elastic.vocabulary import rest_after

__all__ = [
    "DEFAULT_COOLDOWN_LOWER_LIMIT_SECONDS",
    "DiscoveredHosts",
    "FixedHosts",
    "HostDiscovery",
    "HostDiscoveryScript",
    "HostManager",
    "HostState",
]

DEFAULT_COOLDOWN_LOWER_LIMIT_SECONDS = 1


class HostDiscovery:
    """Base class of a host discovery, which finds the hosts of an elastic job."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return the hosts, and how many workers each may run."""
        raise NotImplementedError


class FixedHosts(HostDiscovery):
    """Host discovery that changes only when the caller sets other hosts."""

    def __init__(self, available_hosts: Mapping[str, int]) -> None:
        self.set(available_hosts)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return dict(self._hosts)

    def set(self, available_hosts: Mapping[str, int]) -> None:
        self._hosts = dict(available_hosts)


class HostDiscoveryScript(HostDiscovery):
    """Host discovery by a program that prints `host:slots` for each host, or `host` if `slots` is given."""

    def __init__(self, discovery_script: str, slots: int | None) -> None:
        self._command, self._slots = discovery_script, slots
        self._script = Script(discovery_script, slots)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Run the program. Raise DiscoveryError (a ValueError) if it fails or prints anything but hosts."""
        self._script = Script(self._command, self._slots)
        return self._script()

    def stop(self) -> None:
        """Kill the program if another thread runs it. It can be run again."""
        self._script.stop()


@dataclass(frozen=True)
class DiscoveredHosts:
    """Usable hosts, and their order: the oldest host first, so that rank 0 keeps its host."""

    host_slots: Mapping[str, int]
    host_assignment_order: Sequence[str]

    @property
    def available_hosts(self) -> frozenset[str]:
        return frozenset(self.host_assignment_order)

    def get_slots(self, host: str) -> int:
        return self.host_slots.get(host, 0)

    def count_available_slots(self) -> int:
        return sum(self.get_slots(host) for host in self.host_assignment_order)


class HostState:
    """State of one host: usable or blacklisted. With a cooldown range, a blacklisted host becomes usable again."""

    def __init__(self, cooldown_range: Sequence[float] | None = None) -> None:
        self._cooldown = (float(cooldown_range[0]), float(cooldown_range[1])) if cooldown_range else None
        self._event = threading.Event()
        self._rests_until = -math.inf
        self._count = 0

    def get_event(self) -> threading.Event:
        """Return the event that is set while the host is blacklisted."""
        return self._event

    def set_event(self) -> None:
        self._event.set()

    def blacklist(self) -> None:
        """Stop using the host, permanently or until its cooldown is over, which doubles each time."""
        self.rest()
        self._event.set()

    def rest(self) -> None:
        """Blacklist the host without setting its event."""
        self._count += 1
        rest_s = rest_after(self._count, self._cooldown) if self._cooldown is not None else math.inf
        self._rests_until = time.monotonic() + rest_s

    def whitelist(self) -> None:
        """Use the host again."""
        self._rests_until = -math.inf
        self._event = threading.Event()

    def is_blacklisted(self) -> bool:
        return time.monotonic() < self._rests_until

    def is_resurrected(self) -> bool:
        """Return True once the cooldown is over, until `whitelist` is called."""
        return -math.inf < self._rests_until <= time.monotonic()


class HostManager:
    """Hosts of one elastic job. Each call of `discovery` may return other hosts. Any thread may use it."""

    def __init__(self, discovery: HostDiscovery, cooldown_range: Sequence[float] | None = None) -> None:
        self._discovery = discovery
        self._cooldown_range = cooldown_range
        self._lock = threading.RLock()
        self._states: dict[str, HostState] = {}
        self._current = DiscoveredHosts({}, ())
        self._report: Callable[[DiscoveredHosts], object] = lambda hosts: None

    def report_to(self, report: Callable[[DiscoveredHosts], object]) -> None:
        """Call `report` with the remaining hosts whenever a host is blacklisted, before its workers are asked to end.

        Otherwise their replacements would be started on the blacklisted host.
        """
        self._report = report

    @property
    def current_hosts(self) -> DiscoveredHosts:
        """Return the hosts of the last update, without those that were blacklisted since."""
        with self._lock:
            usable = [host for host in self._current.host_assignment_order if not self.is_blacklisted(host)]
            return DiscoveredHosts({host: self._current.get_slots(host) for host in usable}, usable)

    def update_available_hosts(self) -> int:
        """Call the discovery, and return the change as a value of HostUpdateResult."""
        found = dict(self._discovery.find_available_hosts_and_slots())
        with self._lock:
            for state in self._states.values():
                if state.is_resurrected():
                    state.whitelist()
            before = self._current
            usable = {host: slots for host, slots in found.items() if slots > 0 and not self.is_blacklisted(host)}
            order = self.order_available_hosts(usable, before.host_assignment_order)
            self._current = DiscoveredHosts(usable, order)
        fewer = any(usable.get(host, 0) < slots for host, slots in before.host_slots.items())
        more = any(slots > before.get_slots(host) for host, slots in usable.items())
        return (HostUpdateResult.removed if fewer else 0) | (HostUpdateResult.added if more else 0)

    def blacklist(self, host: str) -> None:
        """Stop using a host, permanently or until its cooldown is over, and ask its workers to end."""
        with self._lock:
            self._state(host).rest()
        self._report(self.current_hosts)
        with self._lock:
            self._state(host).set_event()

    def is_blacklisted(self, host: str) -> bool:
        with self._lock:
            return host in self._states and self._states[host].is_blacklisted()

    def get_host_event(self, host: str) -> threading.Event:
        """Return the event that is set when the host is blacklisted."""
        with self._lock:
            return self._state(host).get_event()

    @staticmethod
    def order_available_hosts(available_hosts: Iterable[str], prev_host_order: Sequence[str]) -> list[str]:
        """Return the hosts in the order in which they were found first. New hosts come last."""
        hosts = list(available_hosts)
        known = [host for host in prev_host_order if host in hosts]
        return known + [host for host in hosts if host not in known]

    def _state(self, host: str) -> HostState:
        return self._states.setdefault(host, HostState(self._cooldown_range))
