# SPDX-License-Identifier: Apache-2.0
"""The values of one round on one rank: ranges to their owners, averages from them; and fragments for late workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from horovod.common.handles import Pending
from horovod.common.local_sgd.fragments import split
from horovod.common.local_sgd.outer import Outer
from horovod.common.local_sgd.post import Channel, Post, is_done
from horovod.common.local_sgd.wire import decode, encode, wire_bytes

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Part:
    """Part of a fragment that this rank exchanges: all of it, or with several ranks to a worker a share of it."""

    fragment: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


class Average:
    """Average of a part over the participants of a round. Each participant owns a range and averages it."""

    def __init__(
        self, post: Post, wire: str, difference: Floats, members: Sequence[int], weights: Sequence[int]
    ) -> None:
        """Send this rank's ranges to their owners and expect those of the other participants.

        Args:
            post: Where messages go.
            wire: Format of the values.
            difference: Global weights minus this worker's weights.
            members: The member of each participant that has this part, in the workers' order.
            weights: Weight of each participant.
        """
        self.values = np.empty_like(difference)
        self.is_finite = True
        self._post, self._wire, self._weights, self._members = post, wire, weights, members
        self._ranges = split(0, difference.size, len(members))
        self._mine = members.index(post.me)
        self._shares: list[npt.NDArray[np.uint8]] = []
        self._pending: list[Pending] = []
        self._results: dict[int, npt.NDArray[np.uint8]] = {}
        self._is_owner_done = False
        own_bytes = wire_bytes(self._own_size, wire)
        for index, member in enumerate(members):
            begin, end = self._ranges[index]
            share = np.empty(own_bytes, np.uint8)
            if index == self._mine:
                share = encode(difference[begin:end], wire)
            else:
                if end > begin:
                    post.send(member, Channel.SHARE, encode(difference[begin:end], wire))
                    result = self._results[index] = np.empty(wire_bytes(end - begin, wire), np.uint8)
                    self._pending.append(post.receive(member, Channel.RESULT, result))
                if own_bytes:
                    self._pending.append(post.receive(member, Channel.SHARE, share))
            self._shares.append(share)
        self._awaited_shares = [
            pending for pending in self._pending if not any(pending.keep is it for it in self._results.values())
        ]

    @property
    def _own_size(self) -> int:
        begin, end = self._ranges[self._mine]
        return end - begin

    def advance(self) -> bool:
        """Return True once `values` holds the average, and `is_finite` tells whether this rank's range is finite."""
        ended = [pending for pending in self._pending if is_done(pending)]
        self._pending = [pending for pending in self._pending if pending not in ended]
        self._awaited_shares = [pending for pending in self._awaited_shares if pending not in ended]
        if not self._is_owner_done and not self._awaited_shares:
            self._is_owner_done = True
            self._finish_range()
        if self._pending:
            return False
        for index, data in self._results.items():
            begin, end = self._ranges[index]
            self.values[begin:end] = decode(data, end - begin, self._wire)
        return True

    def _finish_range(self) -> None:
        """Average this rank's range, and use exactly the values that it sends."""
        begin, end = self._ranges[self._mine]
        if begin == end:
            return
        total = np.zeros(end - begin, np.float32)
        is_weighted = len(set(self._weights)) > 1
        with np.errstate(over="ignore", invalid="ignore"):
            for share, weight in zip(self._shares, self._weights, strict=True):
                values = decode(share, end - begin, self._wire)
                total += values * np.float32(weight) if is_weighted else values
            total /= np.float32(sum(self._weights) if is_weighted else len(self._weights))
        if not np.isfinite(total).all():
            self.is_finite = False
            total[:] = 0
        data = encode(total, self._wire)
        self.values[begin:end] = decode(data, end - begin, self._wire)
        for index, member in enumerate(self._members):
            if index != self._mine:
                self._post.send(member, Channel.RESULT, data)


class Fetched:
    """Weights and momentum of parts that a late worker receives from a participant."""

    def __init__(self, post: Post, member: int, parts: Sequence[Part], channel: Channel = Channel.STATE) -> None:
        self._parts = [(part, np.empty(2 * part.size, np.float32)) for part in parts if part.size]
        self._pending = [post.receive(member, channel, values) for _, values in self._parts]

    def advance(self) -> bool:
        """Return True once all values have arrived."""
        self._pending = [pending for pending in self._pending if not is_done(pending)]
        return not self._pending

    def store(self, outer: Outer) -> None:
        """Put the values into the global weights and momentum."""
        for part, values in self._parts:
            outer.put_state(part.fragment, part.begin, part.end, values)


def send_state(post: Post, outer: Outer, member: int, parts: Sequence[Part], channel: Channel = Channel.STATE) -> None:
    """Send weights and momentum of these parts to a member."""
    for part in parts:
        if part.size:
            post.send(member, channel, outer.state(part.fragment, part.begin, part.end))
