# SPDX-License-Identifier: Apache-2.0
"""Asks a user's HostDiscovery for hosts again and again, and reports each change to ElasticDriver."""

from __future__ import annotations

import threading
from collections.abc import Callable

from horovod.common.log import logger
from horovod.launcher.elastic.discovery import DiscoveredHosts, HostDiscovery, HostManager
from horovod.launcher.elastic.polling import DiscoveryError, Polling


class HostWatch:
    """A thread that keeps `manager` up to date from `begin` to `end`. `report`: gets the hosts after each change."""

    def __init__(
        self, discovery: HostDiscovery, manager: HostManager, report: Callable[[DiscoveredHosts], None]
    ) -> None:
        self._discovery = discovery
        self._manager = manager
        self._report = report
        self._changed = threading.Condition()
        self._polling: Polling | None = None
        self._over = threading.Event()
        manager.report_to(self._note_blacklisting)

    def begin(self) -> None:
        """Ask for the first time, then from a thread. A second call does nothing."""
        if self._polling is not None or self._over.is_set():
            return
        known: dict[str, int] | None = None
        try:
            known = self._find()
            self._note(known)
        except DiscoveryError as error:
            if not self._over.is_set():  # else `end` has stopped the discovery
                logger.warning("%s; it is called again every second", error)
        with self._changed:
            if self._over.is_set():
                return
            self._polling = Polling(self._find, self._note, logger.warning, known)
            self._polling.__enter__()

    def wait_for(self, slots: int, hosts: int, limit_s: float) -> bool:
        """Wait for enough slots on enough hosts. Return False if the time is over; True also after `end`."""

        def are_enough() -> bool:
            found = self._manager.current_hosts
            return found.count_available_slots() >= slots and len(found.available_hosts) >= hosts

        with self._changed:
            return self._changed.wait_for(lambda: self._over.is_set() or are_enough(), limit_s)

    def end(self) -> None:
        """Stop asking the discovery, and wake all threads that wait. Safe to call twice."""
        with self._changed:
            self._over.set()
            self._changed.notify_all()
            polling, self._polling = self._polling, None
        if polling is not None:
            polling.report_no_more()
        stop: Callable[[], None] | None = getattr(self._discovery, "stop", None)
        if stop is not None:  # a script that runs would be waited for, by `begin` in another thread too
            stop()
        if polling is not None:
            polling.__exit__()

    def _find(self) -> dict[str, int]:
        try:
            self._manager.update_available_hosts()
        except DiscoveryError:
            raise
        except Exception as error:  # a user's code: the next time may be better
            raise DiscoveryError(f"the host discovery failed: {type(error).__name__}: {error}") from error
        with self._changed:  # Polling reports no change if the hosts are those from before an empty answer
            self._changed.notify_all()
        hosts = self._manager.current_hosts
        if not hosts.available_hosts:
            raise DiscoveryError("the host discovery found no hosts that can be used")
        return {host: hosts.get_slots(host) for host in hosts.host_assignment_order}

    def _note_blacklisting(self, left: DiscoveredHosts) -> None:
        if self._polling is not None:  # the host may be back before the discovery is asked again
            self._polling.report_again()
        self._report(left)

    def _note(self, hosts: dict[str, int]) -> None:
        """Report what is left of the hosts: one may have been blacklisted since they were found."""
        self._report(self._manager.current_hosts)
        with self._changed:
            self._changed.notify_all()
