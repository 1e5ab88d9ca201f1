# SPDX-License-Identifier: Apache-2.0
"""Thread that repeatedly asks a user's HostDiscovery for hosts and reports each change to ElasticDriver."""

from __future__ import annotations

import threading
from collections.abc import Callable

from horovod.common.log import logger
from horovod.launcher.elastic.discovery import DiscoveredHosts, HostDiscovery, HostManager
from horovod.launcher.elastic.polling import DiscoveryError, Polling


class HostWatch:
    """Thread that keeps `manager` up to date from `begin` to `end`. `report` receives the hosts after each change."""

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
        """Ask the discovery once, then repeatedly from a thread. A second call has no effect."""
        if self._polling is not None or self._over.is_set():
            return
        known: dict[str, int] | None = None
        try:
            known = self._find()
            self._note(known)
        except DiscoveryError as error:
            if not self._over.is_set():  # otherwise `end` has stopped the discovery, which is no problem to report
                logger.warning("%s; it is called again every second", error)
        with self._changed:
            if self._over.is_set():
                return
            self._polling = Polling(self._find, self._note, logger.warning, known)
            self._polling.__enter__()

    def wait_for(self, slots: int, hosts: int, limit_s: float) -> bool:
        """Wait for enough slots on enough hosts. Return False if the time is over, and True also after `end`."""

        def are_enough() -> bool:
            found = self._manager.current_hosts
            return found.count_available_slots() >= slots and len(found.available_hosts) >= hosts

        with self._changed:
            return self._changed.wait_for(lambda: self._over.is_set() or are_enough(), limit_s)

    def end(self) -> None:
        """Stop asking the discovery, and wake all waiting threads. Safe to call twice."""
        with self._changed:
            self._over.set()
            self._changed.notify_all()
            polling, self._polling = self._polling, None
        if polling is not None:
            polling.report_no_more()
        stop: Callable[[], None] | None = getattr(self._discovery, "stop", None)
        if stop is not None:  # stop a running script, because `begin` in another thread may wait for it
            stop()
        if polling is not None:
            polling.__exit__()

    def _find(self) -> dict[str, int]:
        try:
            self._manager.update_available_hosts()
        except DiscoveryError:
            raise
        except Exception as error:  # raised by the user's code; the next call may succeed
            raise DiscoveryError(f"the host discovery failed: {type(error).__name__}: {error}") from error
        # Wake wait_for here, because Polling reports no change if the hosts equal those before an empty answer.
        with self._changed:
            self._changed.notify_all()
        hosts = self._manager.current_hosts
        if not hosts.available_hosts:
            raise DiscoveryError("the host discovery found no hosts that can be used")
        return {host: hosts.get_slots(host) for host in hosts.host_assignment_order}

    def _note_blacklisting(self, left: DiscoveredHosts) -> None:
        # Report even unchanged hosts, because the host may be back before the discovery is asked again.
        if self._polling is not None:
            self._polling.report_again()
        self._report(left)

    def _note(self, hosts: dict[str, int]) -> None:
        """Report the hosts without those that were blacklisted since they were found."""
        self._report(self._manager.current_hosts)
        with self._changed:
            self._changed.notify_all()
