# SPDX-License-Identifier: Apache-2.0
"""Hosts made of network namespaces, for what goes over TCP. The same ones that the fault tests cut apart."""

from __future__ import annotations

from testkit.hosts import Network


class NamespaceHosts:
    """`hosts` of them with `neighbours` ranks each; see benchkit.world.Hosts. RuntimeError where that cannot be.

    `network`: that of others, which stay its owners.
    """

    interface = "eth0"

    def __init__(self, hosts: int, neighbours: int = 1, network: Network | None = None) -> None:
        self.neighbours = neighbours
        self.names = [f"bench{number}" for number in range(hosts)]
        self.network = network or Network(self.names)
        self._owned = network is None

    def one_rank_each(self) -> NamespaceHosts:
        """The same hosts for a library with one rank on each."""
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
