# SPDX-License-Identifier: Apache-2.0
"""Hosts simulated by network namespaces, for measurements over TCP; the fault tests use the same class of networks."""

from __future__ import annotations

from testkit.hosts import Network


class NamespaceHosts:
    """Simulated hosts with `neighbours` ranks each; see benchkit.world.Hosts.

    Raise RuntimeError where they cannot be made.

    `network`: an existing network, which its owner will close.
    """

    interface = "eth0"

    def __init__(self, hosts: int, neighbours: int = 1, network: Network | None = None) -> None:
        self.neighbours = neighbours
        self.names = [f"bench{number}" for number in range(hosts)]
        self.network = network or Network(self.names)
        self._owned = network is None

    def one_rank_each(self) -> NamespaceHosts:
        """Return these hosts for a library with one rank on each."""
        return NamespaceHosts(len(self.names), 1, self.network)

    def name(self, rank: int) -> str:
        return self.names[rank // self.neighbours]

    def address(self, rank: int) -> str:
        return self.network.addresses[self.name(rank)]

    def inside(self, rank: int) -> list[str]:
        return self.network.inside(self.name(rank))

    def close(self) -> None:
        if self._owned:
            self.network.close()
