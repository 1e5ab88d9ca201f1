# SPDX-License-Identifier: Apache-2.0
"""Two hosts made of network namespaces, for what goes over TCP. The same ones that the fault tests cut apart."""

from __future__ import annotations

from testkit.hosts import Network


class NamespaceHosts:
    """One host for each rank; see benchkit.world.Hosts. RuntimeError where namespaces are not to be had."""

    interface = "eth0"

    def __init__(self, ranks: int) -> None:
        self._names = [f"bench{rank}" for rank in range(ranks)]
        self._network = Network(self._names)

    def address(self, rank: int) -> str:
        return self._network.addresses[self._names[rank]]

    def inside(self, rank: int) -> list[str]:
        return self._network.inside(self._names[rank])

    def close(self) -> None:
        self._network.close()
