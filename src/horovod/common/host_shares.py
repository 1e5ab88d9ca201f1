# SPDX-License-Identifier: Apache-2.0
"""Division of a buffer among the ranks of a set, for exchanges that compress only bytes that leave a host.

Each host divides a buffer into as many shares as the smallest host has ranks. The first ranks of a host own one share
each. The ranks of a host add up their values of each share in memory. The owners of one share on all hosts exchange it,
and each owner sends the result to its host's ranks. All three steps are alltoalls of the whole set whose splits name
the receivers, so no other process sets are needed. The functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence

UNIT = 4096  # Values in a unit. A block of int8 that does not divide it ends early at the end of a share or a chunk.


class HostShares:
    """One rank's part of the exchange.

    Attributes:
        count: Number of shares of a host.
        hosts: Number of hosts.
        largest: Largest number of ranks on one host.
        mine: The share that this rank owns, or None if its host has more ranks than shares.
        here: Members of the set on this rank's host, by their index in the set.
        peers: Owners of this rank's share, one on each host, including this rank; empty if this rank owns no share.
        peer_index: This rank's index in `peers`, or -1.
    """

    def __init__(self, hosts: Sequence[str], me: int) -> None:
        """Compute the shares.

        Args:
            hosts: The host of each member of the set.
            me: This rank's index among the members.
        """
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
        # Sort by rank, because an alltoall expects its parts in that order.
        self.peers = [] if self.mine is None else sorted(ranks[self.mine] for ranks in members.values())
        self.peer_index = self.peers.index(me) if self.peers else -1

    def bounds(self, values: int) -> list[int]:
        """Return where each share of a buffer of this many values begins, and where the last one ends."""
        return even_bounds(values, self.count)

    def splits_to_owners(self, bounds: Sequence[int]) -> list[int]:
        """Return how many values each member gets when this rank sends each share to its owner on this host."""
        splits = [0] * self._size
        for share, owner in enumerate(self.here[: self.count]):
            splits[owner] = bounds[share + 1] - bounds[share]
        return splits

    def splits_to_peers(self, lengths: Sequence[int]) -> list[int]:
        """Return the splits of an alltoall in which the peer with index n gets `lengths[n]` values."""
        splits = [0] * self._size
        for peer, length in zip(self.peers, lengths, strict=True):
            splits[peer] = length
        return splits

    def splits_to_host(self, length: int) -> list[int]:
        """Return the splits of an alltoall in which each member on this host gets `length` values."""
        here = set(self.here)
        return [length if index in here else 0 for index in range(self._size)]


def even_bounds(values: int, parts: int) -> list[int]:
    """Return where each part of a buffer begins, and where the last one ends. Parts begin at multiples of UNIT."""
    units = -(-values // UNIT)
    return [min(values, units * part // parts * UNIT) for part in range(parts)] + [values]
