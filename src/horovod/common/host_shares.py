# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a process set share an exchange in which only bytes that leave a host are compressed. Pure.

Each host divides a buffer into as many shares as the smallest host has ranks. The first ranks of a host own one share
each. A host's ranks add their shares up in memory, owners of the same share on all hosts exchange it, and each owner
hands the result to its host's ranks. All three are alltoalls of the whole set with splits that name the receivers, so
no other process sets are needed.
"""

from __future__ import annotations

from collections.abc import Sequence

UNIT = 4096  # values; a block of int8 that does not divide it ends early where a share or a chunk ends


class HostShares:
    """One rank's part of the exchange.

    Attributes:
        count: Shares of a host.
        hosts: The number of hosts.
        largest: The most ranks that a host has.
        mine: The share that this rank owns, or None if its host has more ranks than shares.
        here: Members of this rank's host, by their index in the set.
        peers: Owners of this rank's share, one on each host, this rank included; empty if it owns none.
    """

    def __init__(self, hosts: Sequence[str], me: int) -> None:
        """`hosts`: the host of each member; `me`: this rank's index among the members."""
        members: dict[str, list[int]] = {}
        for index, host in enumerate(hosts):
            members.setdefault(host, []).append(index)
        self._size = len(hosts)
        self.count = min(map(len, members.values()))
        self.hosts = len(members)
        self.largest = max(map(len, members.values()))
        self.here = members[hosts[me]]
        position = self.here.index(me)
        self.mine = position if position < self.count else None
        # In the order of ranks, in which an alltoall expects what is sent to them.
        self.peers = [] if self.mine is None else sorted(ranks[self.mine] for ranks in members.values())
        self.peer_index = self.peers.index(me) if self.peers else -1

    def bounds(self, values: int) -> list[int]:
        """Return where each share of a buffer of so many values begins, and the end."""
        return even_bounds(values, self.count)

    def splits_to_owners(self, bounds: Sequence[int]) -> list[int]:
        """Return how many values each member gets when this rank sends each share to its owner on this host."""
        splits = [0] * self._size
        for share, owner in enumerate(self.here[: self.count]):
            splits[owner] = bounds[share + 1] - bounds[share]
        return splits

    def splits_to_peers(self, lengths: Sequence[int]) -> list[int]:
        """Return the splits of an alltoall in which the n-th peer gets `lengths[n]` values."""
        splits = [0] * self._size
        for peer, length in zip(self.peers, lengths, strict=True):
            splits[peer] = length
        return splits

    def splits_to_host(self, length: int) -> list[int]:
        """Return the splits of an alltoall in which every member on this host gets the same number of values."""
        here = set(self.here)
        return [length if index in here else 0 for index in range(self._size)]


def even_bounds(values: int, parts: int) -> list[int]:
    """Return where each of so many parts of a buffer begins, and the end; parts begin at multiples of UNIT."""
    units = -(-values // UNIT)
    return [min(values, units * part // parts * UNIT) for part in range(parts)] + [values]
