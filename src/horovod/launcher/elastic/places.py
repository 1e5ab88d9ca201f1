# SPDX-License-Identifier: Apache-2.0
"""Places in one generation: ranks for workers, which are identified by their birth ids. Pure functions only."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Place:
    """Horovod's six numbers of one worker in one generation."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def places_of(workers: Sequence[tuple[int, tuple[str, int], int | None]]) -> dict[int, Place]:
    """Return the places by birth id, for workers given as (birth id, (host, slot), last rank or None).

    Survivors and their hosts come first. A worker without the training state is no survivor, so its last rank is None.
    Ranks on one host are consecutive. Rank 0 is a survivor if there is one, because it hands its state to all others.
    """
    seniority = {birth: (rank is None, rank if rank is not None else 0, birth) for birth, _, rank in workers}
    hosts: dict[str, list[int]] = {}
    for birth, (host, _), _ in sorted(workers, key=lambda worker: seniority[worker[0]]):
        hosts.setdefault(host, []).append(birth)
    places: dict[int, Place] = {}
    for host, births in hosts.items():
        for local_rank, birth in enumerate(births):
            column = [name for name, there in hosts.items() if len(there) > local_rank]
            places[birth] = Place(
                rank=len(places),
                size=len(workers),
                local_rank=local_rank,
                local_size=len(births),
                cross_rank=column.index(host),
                cross_size=len(column),
            )
    return places


def planned_in_slot(slot: tuple[str, int], place: Place, taken: Sequence[tuple[str, int]]) -> Place:
    """Return the place that is planned for a worker when it is started.

    Its local rank is the number of its slot, which no other process on its host has, because scripts choose a GPU by
    local rank. Workers that go on keep the GPU that they chose, although their local ranks change.

    Args:
        slot: The slot in which the worker is started.
        place: Its place if a generation were announced now.
        taken: The slots of all workers, in the order of their ranks.
    """
    number = slot[1]
    column = list(dict.fromkeys(host for host, other in taken if other == number))
    local_size = max(place.local_size, number + 1)
    return replace(
        place,
        size=max(place.size, local_size),
        local_rank=number,
        local_size=local_size,
        cross_rank=column.index(slot[0]),
        cross_size=len(column),
    )


def resettled(workers: Sequence[tuple[int, tuple[str, int]]], hosts: Mapping[str, int]) -> dict[int, tuple[str, int]]:
    """Return changed slots by birth id after the hosts have changed.

    Slots of one host are interchangeable: if it has fewer than before, the senior workers stay, whatever their numbers.

    Args:
        workers: (birth id, (host, slot)), the senior workers first.
    """
    found: dict[int, tuple[str, int]] = {}
    for host, count in hosts.items():
        there = [(birth, slot[1]) for birth, slot in workers if slot[0] == host]
        kept = {number for _, number in there[:count] if number < count}
        free = iter([number for number in range(count) if number not in kept])
        given = {birth: next(free) for birth, number in there[:count] if number >= count}
        lost = [birth for birth, number in there[count:] if number in given.values()]
        found |= {birth: (host, number) for birth, number in given.items()}
        beyond = {number for birth, number in there if number >= count and birth not in given}
        spare = (number for number in itertools.count(count) if number not in beyond)
        found |= {birth: (host, next(spare)) for birth in lost}
    return found
