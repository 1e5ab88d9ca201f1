# SPDX-License-Identifier: Apache-2.0
"""Asks a user's HostDiscovery for hosts again and again, and reports each change to ElasticDriver."""

from __future__ import annotations

import threading
from collections.abc import Callable

from horovod.common.log import logger
from horovod.runner.elastic.discovery import DiscoveredHosts, HostDiscovery, HostManager
from horovod.runner.elastic.polling import DiscoveryError, Polling


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
        self._is_over = False
        manager.report_to(self._note_blacklisting)

    def begin(self) -> None:
        """Ask for the first time, then from a thread. A second call does nothing."""
        if self._polling is not None or self._is_over:
            return
        known: dict[str, int] | None = None
        try:
            known = self._find()
            self._note(known)
        except DiscoveryError as error:
            logger.warning("%s; it is called again every second", error)
        self._polling = Polling(self._find, self._note, logger.warning, known)
        self._polling.__enter__()

    def wait_for(self, slots: int, hosts: int, limit_s: float) -> bool:
        """Wait for enough slots on enough hosts. Return False if the time is over; True also after `end`."""

        def are_enough() -> bool:
            found = self._manager.current_hosts
            return found.count_available_slots() >= slots and len(found.available_hosts) >= hosts

        with self._changed:
            return self._changed.wait_for(lambda: self._is_over or are_enough(), limit_s)

    def end(self) -> None:
        """Ask no more, and let nobody wait. Safe to call twice."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        polling, self._polling = self._polling, None
        if polling is not None:
            polling.report_no_more()
            stop: Callable[[], None] | None = getattr(self._discovery, "stop", None)
            if stop is not None:  # a script that runs would be waited for
                stop()
            polling.__exit__()

    def _find(self) -> dict[str, int]:
        try:
            self._manager.update_available_hosts()
        except DiscoveryError:
            raise
        except Exception as error:  # a user's code: the next time may be better
            raise DiscoveryError(f"the host discovery failed: {type(error).__name__}: {error}") from error
        hosts = self._manager.current_hosts
        if not hosts.available_hosts:
            raise DiscoveryError("the host discovery found no hosts that can be used")
        return {host: hosts.get_slots(host) for host in hosts.host_assignment_order}

    def _note_blacklisting(self, left: DiscoveredHosts) -> None:
        if self._polling is not None:  # the host may be back before the discovery is asked again
            self._polling.report_again()
        self._report(left)

    def _note(self, hosts: dict[str, int]) -> None:
        self._report(DiscoveredHosts(hosts, list(hosts)))
        with self._changed:
            self._changed.notify_all()
