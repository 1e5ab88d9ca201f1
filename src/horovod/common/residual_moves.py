# SPDX-License-Identifier: Apache-2.0
"""Movement of residuals between the ranks of a host after the ranks or the hosts of a job have changed.

A residual belongs to a host and a range of values, in units of the host's sum. The rank that owns a range keeps its
residual. If ranges get other owners, the ranks of a host exchange what they have, by offsets; missing parts are zero.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from horovod.common.context import default_context
from horovod.common.host_shares import HostShares, even_bounds
from horovod.common.joining import elastic_place

Segment: TypeAlias = tuple[int, int]  # begin and end of a range of values
Segments: TypeAlias = tuple[Segment, ...]  # disjoint; a tensor holds the values of one after those of the other


@dataclass(frozen=True)
class Holding:
    """Residuals that one rank has.

    Args:
        place: The host that they belong to. With scope="all" each worker counts as a host.
        values: Number of values of the buffer that the ranges are of.
        segments: The ranges, by the name of the residual.
    """

    place: str = ""
    values: int = 0
    segments: Mapping[str, Segments] = field(default_factory=dict)

    def restricted_to(self, names: Iterable[str]) -> Holding:
        """Return the holding of the residuals with these names."""
        return Holding(self.place, self.values, {name: self.segments.get(name, ()) for name in names})

    def of_same(self, other: Holding) -> Holding:
        """Return this holding if it has the other one's place and number of values, else an empty holding."""
        return self if (self.place, self.values) == (other.place, other.values) else Holding()

    def fits(self, wanted: Holding, names: Iterable[str]) -> bool:
        """Return True if the residuals with these names belong to the place and the ranges of `wanted`."""
        segments = [(self.segments.get(name), wanted.segments.get(name)) for name in names]
        return self.of_same(wanted) is self and all(one == other for one, other in segments)

    def packed(self) -> list[Any]:
        """Return the holding as a value for JSON."""
        return [self.place, self.values, dict(self.segments)]

    @classmethod
    def unpacked(cls, found: Sequence[Any]) -> Holding:
        """Return the holding that `packed` turned into this value."""
        place, values, segments = found
        return cls(place, values, {name: tuple((int(a), int(b)) for a, b in it) for name, it in segments.items()})


class Move(NamedTuple):
    """One part of a residual that a rank takes over.

    Sender and receiver are indices in the list of a host's ranks.
    """

    sender: int
    receiver: int
    start: int
    end: int


def present_place(scope: str) -> str:
    """Return the place of this rank's residuals: its host, or with scope="all" the worker."""
    if scope == "host":
        return default_context.topology.host
    if elastic_place.is_elastic(os.environ):
        return f"worker {elastic_place.birth_id(os.environ)}"
    return f"rank {default_context.topology.rank}"


def share_and_chunk(shares: HostShares, values: int) -> tuple[Segments, Segments]:
    """Return two ranges: a rank's share of the values, and the chunk of that share that the rank adds up."""
    if shares.mine is None:
        return (), ()
    first, end = shares.bounds(values)[shares.mine : shares.mine + 2]
    start, last = even_bounds(end - first, shares.hosts)[shares.peer_index : shares.peer_index + 2]
    return ((first, end),), ((first + start, first + last),)


def moves(old: Sequence[Segments], new: Sequence[Segments]) -> list[Move]:
    """Return which rank gives which part to which rank, in the order of receivers, then of offsets.

    Args:
        old: The ranges whose residuals each rank of a host has. If several have a part, the first one gives it.
        new: The ranges that each rank owns from now on.
    """
    starts: list[int] = []
    given: list[tuple[int, int, int]] = []  # begin, end and sender of disjoint parts, in ascending order
    for sender, segments in enumerate(old):
        for segment in segments:
            for start, end in _gaps(given, starts, segment):
                at = bisect.bisect(starts, start)
                starts.insert(at, start)
                given.insert(at, (start, end, sender))
    found = []
    for receiver, segments in enumerate(new):
        for start, end in segments:
            for first, last, sender in _overlapping(given, starts, start, end):
                found.append(Move(sender, receiver, max(first, start), min(last, end)))
    return found


def positions(segments: Segments, start: int, end: int) -> slice:
    """Return where a part lies in the tensor that holds these ranges one after the other. One range contains it."""
    at = 0
    for first, last in segments:
        if first <= start and end <= last:
            return slice(at + start - first, at + end - first)
        at += last - first
    raise ValueError(f"The part from {start} to {end} is in none of the ranges {segments}")


def length_of(segments: Segments) -> int:
    """Return the number of values in these ranges."""
    return sum(end - start for start, end in segments)


def _overlapping(
    given: Sequence[tuple[int, int, int]], starts: Sequence[int], start: int, end: int
) -> list[tuple[int, int, int]]:
    """Return the parts that have values between `start` and `end`."""
    if start >= end:
        return []
    first = max(0, bisect.bisect_right(starts, start) - 1)
    return [it for it in given[first : bisect.bisect_left(starts, end)] if it[1] > start and it[0] < end]


def _gaps(given: Sequence[tuple[int, int, int]], starts: Sequence[int], segment: Segment) -> list[Segment]:
    """Return the parts of a range that no rank gives so far."""
    at, end = segment
    gaps = []
    for first, last, _ in _overlapping(given, starts, at, end):
        if at < first:
            gaps.append((at, first))
        at = max(at, last)
    return [*gaps, (at, end)] if at < end else gaps
