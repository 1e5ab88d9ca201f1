# SPDX-License-Identifier: Apache-2.0
"""Process sets of an elastic job from one generation to the next: a set names workers by their ids, not by ranks.

A new worker takes the place of a worker that left, if possible one on the new worker's host. A set is smaller until new
workers replace those that left. Every rank computes equal sets from what all ranks send when a generation begins. The
functions are pure; only Heritage refers to the user's objects.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from horovod.common.process_set import ProcessSet

Worker = tuple[int, str]  # worker id, host


@dataclass(frozen=True)
class HandedDown:
    """Process set as ranks describe it to each other.

    Attributes:
        key: Generation in which the set was made, and its number there.
        origin: The ranks that it was made with, in the generation of `key`.
        births: Ids of the workers with a place in the set. The place of a worker that left is kept for a new worker.
        by_init: True if the set was passed to hvd.init(). New workers pass it too.
    """

    key: tuple[int, int]
    origin: tuple[int, ...]
    births: tuple[int, ...]
    by_init: bool

    def ranks(self, members: Sequence[Worker]) -> tuple[int, ...]:
        """Return the ranks of the set's workers that are in this generation."""
        return tuple(rank for rank, (birth, _) in enumerate(members) if birth in self.births)


@dataclass(frozen=True)
class Word:
    """Message of one worker to all others when a generation begins. A new worker has no members to send."""

    worker: Worker
    members: tuple[Worker, ...] = ()  # workers of the sender's last generation, by rank
    vacant: tuple[Worker, ...] = ()  # workers that left before that and were not replaced
    sets: tuple[HandedDown, ...] = ()

    def packed(self) -> dict[str, Any]:
        sets = [[list(one.key), list(one.origin), list(one.births), one.by_init] for one in self.sets]
        return {"worker": self.worker, "members": self.members, "vacant": self.vacant, "sets": sets}

    @classmethod
    def unpacked(cls, found: Mapping[str, Any]) -> Word:
        def workers(name: str) -> tuple[Worker, ...]:
            return tuple((int(birth), str(host)) for birth, host in found[name])

        sets = tuple(
            HandedDown((int(key[0]), int(key[1])), tuple(origin), tuple(births), bool(by_init))
            for key, origin, births, by_init in found["sets"]
        )
        birth, host = found["worker"]
        return cls((int(birth), str(host)), workers("members"), workers("vacant"), sets)


@dataclass(frozen=True)
class Agreed:
    """Result that every rank computes from the messages of all ranks."""

    members: tuple[Worker, ...]
    vacant: tuple[Worker, ...]
    sets: tuple[HandedDown, ...]  # sets to register again, in this order
    is_first: bool  # True if all workers are in their first generation


def agree(words: Sequence[Word]) -> Agreed:
    """Return the sets and members of the new generation, from the messages of all ranks in rank order.

    The members before come from the message of the lowest rank that was in an earlier generation.
    """
    members = tuple(word.worker for word in words)
    elder = next((word for word in words if word.members), None)
    if elder is None:
        return Agreed(members, (), (), True)
    heirs, vacant = _heirs(elder, members)
    found: dict[tuple[int, int], HandedDown] = {}
    for word in words:  # A set is kept if any worker still refers to it.
        for one in word.sets:
            found.setdefault(one.key, one)
    handed = [
        replace(one, births=tuple(heirs.get(birth, birth) for birth in one.births)) for _, one in sorted(found.items())
    ]
    return Agreed(members, vacant, tuple(handed), False)


def _heirs(elder: Word, members: Sequence[Worker]) -> tuple[dict[int, int], tuple[Worker, ...]]:
    """Return which new worker takes the place of which lost worker, and the places that stay vacant."""
    present = {birth for birth, _ in members}
    known = {birth for birth, _ in (*elder.members, *elder.vacant)}
    vacant = [worker for worker in (*elder.vacant, *elder.members) if worker[0] not in present]
    heirs: dict[int, int] = {}
    newcomers = sorted(worker for worker in members if worker[0] not in known)
    for same_host in (True, False):
        for birth, host in newcomers:
            place = next((worker for worker in vacant if not same_host or worker[1] == host), None)
            if birth in heirs.values() or place is None:
                continue
            heirs[place[0]] = birth
            vacant.remove(place)
    return heirs, tuple(vacant)


class Heritage:
    """Process sets and members that one worker keeps from generation to generation.

    The context calls its methods. Without an elastic driver it has no effect.
    """

    def __init__(self) -> None:
        self._members: tuple[Worker, ...] = ()
        self._vacant: tuple[Worker, ...] = ()
        self._sets: dict[tuple[int, int], HandedDown] = {}
        self._objects: dict[tuple[int, int], list[weakref.ref[ProcessSet]]] = {}
        # Sets passed to hvd.init(), which stay alive even if the program drops its references.
        self._kept: list[ProcessSet] = []
        self._next = (0, 0)
        self._adoptable: set[tuple[int, int]] = set()
        self.is_first = True  # True until this worker's first generation has begun

    def word(self, birth: int, host: str) -> Word:
        alive = [one for key, one in self._sets.items() if one.by_init or self.objects(key)]
        return Word((birth, host), self._members, self._vacant, tuple(alive))

    def take(self, agreed: Agreed, generation: int, passed: Sequence[ProcessSet]) -> list[ProcessSet]:
        """Begin a generation. Return those sets passed to hvd.init() that the job does not know."""
        self._members, self._vacant, self.is_first = agreed.members, agreed.vacant, False
        self._sets = {one.key: one for one in agreed.sets}
        self._adoptable = set(self._sets)
        self._next = (generation, 0)
        unknown = []
        for process_set in passed:
            if any(process_set in self.objects(key) for key in self._sets):
                continue  # this worker passed this very object in an earlier generation
            origin = tuple(process_set.ranks or ())
            key = next((one.key for one in agreed.sets if one.by_init and one.origin == origin), None)
            if key is None:
                unknown.append(process_set)
            else:
                self._objects.setdefault(key, []).insert(0, weakref.ref(process_set))
                self._kept.append(process_set)
        return unknown

    def handed_down(self) -> list[tuple[HandedDown, list[ProcessSet], tuple[int, ...]]]:
        """Return the sets to register: description, objects that stand for the set, and its ranks now."""
        found = []
        for key, one in self._sets.items():
            objects = self.objects(key)
            if not objects:
                objects = [ProcessSet(one.origin)]
                self._objects[key] = [weakref.ref(objects[0])]
                if one.by_init:
                    self._kept.extend(objects)
            found.append((one, objects, one.ranks(self._members)))
        return found

    def objects(self, key: tuple[int, int]) -> list[ProcessSet]:
        return [found for reference in self._objects.get(key, []) if (found := reference()) is not None]

    def made(self, process_set: ProcessSet, ranks: tuple[int, ...], by_init: bool) -> None:
        """Record a set that all ranks have just registered."""
        if not self._members:
            return
        key, self._next = self._next, (self._next[0], self._next[1] + 1)
        births = tuple(self._members[rank][0] for rank in ranks)
        self._sets[key] = HandedDown(key, ranks, births, by_init)
        self._objects[key] = [weakref.ref(process_set)]
        if by_init:
            self._kept.append(process_set)

    def removed(self, process_set: ProcessSet) -> None:
        for key in [key for key in self._sets if process_set in self.objects(key)]:
            self._kept = [one for one in self._kept if one not in self.objects(key)]
            del self._sets[key], self._objects[key]

    def adopts(self, registered: ProcessSet, added: ProcessSet) -> bool:
        """Return True if `added` may stand for an inherited set.

        That is allowed once in a generation for each set, because scripts add their sets again after each reset.
        """
        for key in self._adoptable:
            if registered in self.objects(key):
                self._adoptable.discard(key)
                if added is not registered:
                    self._objects[key].insert(0, weakref.ref(added))
                return True
        return False
