# SPDX-License-Identifier: Apache-2.0
"""An import path of Horovod's launcher: what is not available here raises on use."""

from horovod.common.not_yet import NotYet, value


class DiscoveredHosts(NotYet): ...


class HostDiscovery(NotYet): ...


class FixedHosts(HostDiscovery): ...


class HostDiscoveryScript(HostDiscovery): ...


class HostManager(NotYet): ...


class HostState(NotYet): ...


DEFAULT_COOLDOWN_LOWER_LIMIT_SECONDS = value(__name__, "DEFAULT_COOLDOWN_LOWER_LIMIT_SECONDS")
