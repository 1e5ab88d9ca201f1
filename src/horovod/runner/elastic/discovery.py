# SPDX-License-Identifier: Apache-2.0
"""An import path of Horovod's launcher: what is not available here raises on use.

Ray's executors take a user's own HostDiscovery.
"""

from horovod.common.not_yet import NotYet, value


class DiscoveredHosts(NotYet): ...


class HostDiscovery:
    """Base of what tells an elastic job on Ray which hosts there are."""

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Hosts, and how many workers each may hold."""
        raise NotImplementedError


class FixedHosts(NotYet, HostDiscovery): ...


class HostDiscoveryScript(NotYet, HostDiscovery): ...


class HostManager(NotYet): ...


class HostState(NotYet): ...


DEFAULT_COOLDOWN_LOWER_LIMIT_SECONDS = value(__name__, "DEFAULT_COOLDOWN_LOWER_LIMIT_SECONDS")
