# SPDX-License-Identifier: Apache-2.0
"""Choice of the workers that go on when some of them cannot reach each other. Pure functions only.

Workers of one host that reach the same other workers form one group. So the size of the problem is the number of hosts
that some other host cannot reach, not the number of workers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

HostPair = tuple[str, str]  # in ascending order
BirthPair = tuple[int, int]  # in ascending order

# largest number of groups that cannot reach another group for which the choice is exact: 16 hosts and a few single
# workers
MAX_EXACT = 20

MAX_SHOWN = 6  # pairs named in one line


@dataclass(frozen=True)
class Candidate:
    """Worker that waits for its place. `has_state` means that it can hand the training state to the others."""

    birth: int
    host: str
    has_state: bool = True


@dataclass(frozen=True)
class BadPairs:
    """Pairs of hosts that cannot reach each other, and pairs of single workers that cannot although their hosts can."""

    hosts: frozenset[HostPair] = frozenset()
    workers: frozenset[BirthPair] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.hosts or self.workers)

    def __str__(self) -> str:
        shown = [f"{one} and {other}" for one, other in sorted(self.hosts)]
        parts = [f"hosts {_listed(shown)} do not reach each other"] if shown else []
        shown = [f"{one} and {other}" for one, other in sorted(self.workers)]
        parts += [f"workers {_listed(shown)} do not reach each other"] if shown else []
        return "; ".join(parts)

    def parts(self, one: Candidate, other: Candidate) -> bool:
        """Return True if these two workers cannot reach each other."""
        hosts = (min(one.host, other.host), max(one.host, other.host))
        births = (min(one.birth, other.birth), max(one.birth, other.birth))
        return hosts in self.hosts or births in self.workers


def _listed(words: Sequence[str]) -> str:
    more = f", and {len(words) - MAX_SHOWN} more pairs" if len(words) > MAX_SHOWN else ""
    return ", ".join(words[:MAX_SHOWN]) + more


@dataclass
class _Group:
    """Workers of one host that cannot reach the same groups. For `value` see `_value`; larger is better."""

    members: list[Candidate]
    value: tuple[int, int] = (0, 0)
    cut_from: set[int] = field(default_factory=set)

    @property
    def has_state(self) -> bool:
        return any(one.has_state for one in self.members)


def choose(workers: Sequence[Candidate], bad: BadPairs) -> frozenset[int]:
    """Return the birth ids of the largest set of workers that all reach each other and of which one has the state.

    If no worker has the state, the last condition is dropped. Among sets of equal size, the set with the lowest birth
    id that the others lack is chosen.
    """
    free, groups = _grouped(workers, bad)
    needs_state = any(one.has_state for one in workers) and not any(one.has_state for one in free)
    best = max(
        (_best(groups, first) for first in _first_choices(groups, needs_state)),
        key=lambda chosen: _total(groups, chosen),
    )
    return frozenset(one.birth for group in best for one in groups[group].members) | {one.birth for one in free}


def _first_choices(groups: Sequence[_Group], needs_state: bool) -> Iterable[int | None]:
    """Return the groups of which one has to be in the set, or [None] if any group will do."""
    return [index for index, group in enumerate(groups) if group.has_state] if needs_state else [None]


def _grouped(workers: Sequence[Candidate], bad: BadPairs) -> tuple[list[Candidate], list[_Group]]:
    """Return the workers that reach all others, and the rest in groups."""
    hosts = {host for pair in bad.hosts for host in pair} & {one.host for one in workers}
    alone = {birth for pair in bad.workers for birth in pair}
    members: dict[tuple[str, int], list[Candidate]] = {}
    free = []
    for one in workers:
        if one.host in hosts or one.birth in alone:
            members.setdefault((one.host, one.birth if one.birth in alone else -1), []).append(one)
        else:
            free.append(one)
    births = sorted((one.birth for found in members.values() for one in found), reverse=True)
    worth = {birth: 1 << place for place, birth in enumerate(births)}
    groups = [_Group(found, _value(found, worth)) for found in members.values()]
    for left, right in combinations(range(len(groups)), 2):
        if bad.parts(groups[left].members[0], groups[right].members[0]):
            groups[left].cut_from.add(right)
            groups[right].cut_from.add(left)
    return free, groups


def _value(members: Sequence[Candidate], worth: dict[int, int]) -> tuple[int, int]:
    """Return the number of workers, then a number with one bit for each, the highest for the lowest birth id.

    Both can be added up over groups.
    """
    return len(members), sum(worth[one.birth] for one in members)


def _total(groups: Sequence[_Group], chosen: Collection[int]) -> tuple[int, int]:
    return sum(groups[index].value[0] for index in chosen), sum(groups[index].value[1] for index in chosen)


def _best(groups: Sequence[_Group], first: int | None) -> frozenset[int]:
    """Return the best set of groups that reach each other. The set contains `first` if it is not None."""
    chosen = frozenset() if first is None else frozenset([first])
    left = set(range(len(groups))) - chosen - {other for index in chosen for other in groups[index].cut_from}
    search = _exact if len(groups) <= MAX_EXACT else _greedy
    return chosen | search(groups, frozenset(left))


def _exact(groups: Sequence[_Group], left: frozenset[int]) -> frozenset[int]:
    """Return the best subset by recursion with and without the group that is cut off from the most other groups."""
    conflicts = {index: len(groups[index].cut_from & left) for index in left}
    index = max(left, key=lambda one: (conflicts[one], -one), default=-1)
    if index < 0 or conflicts[index] == 0:
        return left
    chosen = frozenset([index]) | _exact(groups, left - groups[index].cut_from - {index})
    without = _exact(groups, left - {index})
    return max(chosen, without, key=lambda one: _total(groups, one))


def _greedy(groups: Sequence[_Group], left: frozenset[int]) -> frozenset[int]:
    """Return a good subset: repeatedly take the group that excludes the fewest workers of other groups."""
    chosen: set[int] = set()
    while left:

        def gain(index: int, left: frozenset[int] = left) -> tuple[int, int]:
            lost = sum(groups[other].value[0] for other in groups[index].cut_from & left)
            return groups[index].value[0] - lost, groups[index].value[1]

        best = max(left, key=gain)
        chosen.add(best)
        left = left - groups[best].cut_from - {best}
    return frozenset(chosen)
