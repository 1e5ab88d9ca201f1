# SPDX-License-Identifier: Apache-2.0
"""Process sets of an elastic job from one generation to the next: a set names workers by their birth ids, not by ranks.

Who comes takes the place of one who left, on the same host if there is one; a set whose workers left shrinks. Every
rank finds the same from what all of them said at the meeting. Pure, but for the references to users' objects.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from horovod.common.process_sets import ProcessSet

Worker = tuple[int, str]  # birth id, host


@dataclass(frozen=True)
class HandedDown:
    """A set as ranks tell each other of it. `origin`: the ranks that it was made with, in the generation of `key`.

    `births`: who has a place in it, whether they live or not; that of one who left waits for a newcomer.
    """

    key: tuple[int, int]  # generation in which it was made, and its number there
    origin: tuple[int, ...]
    births: tuple[int, ...]
    by_init: bool  # passed to hvd.init(), as new workers will

    def ranks(self, members: Sequence[Worker]) -> tuple[int, ...]:
        """Those of its workers that are there."""
        return tuple(rank for rank, (birth, _) in enumerate(members) if birth in self.births)


@dataclass(frozen=True)
class Word:
    """What one worker says at a meeting. A new one knows no members."""

    worker: Worker
    members: tuple[Worker, ...] = ()  # of its last generation, by rank
    vacant: tuple[Worker, ...] = ()  # left before that, and nobody came in their place
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
    """What follows from the words of all ranks."""

    members: tuple[Worker, ...]
    vacant: tuple[Worker, ...]
    sets: tuple[HandedDown, ...]  # to be registered again, in this order
    is_first: bool  # nobody has been in a generation before


def agree(words: Sequence[Word]) -> Agreed:
    """By the words of all ranks, in rank order. The survivor with the lowest rank knows who was there before."""
    members = tuple(word.worker for word in words)
    elder = next((word for word in words if word.members), None)
    if elder is None:
        return Agreed(members, (), (), True)
    heirs, vacant = _heirs(elder, members)
    found: dict[tuple[int, int], HandedDown] = {}
    for word in words:  # a set lives on if any worker still refers to it
        for one in word.sets:
            found.setdefault(one.key, one)
    handed = [
        replace(one, births=tuple(heirs.get(birth, birth) for birth in one.births)) for _, one in sorted(found.items())
    ]
    return Agreed(members, vacant, tuple(handed), False)


def _heirs(elder: Word, members: Sequence[Worker]) -> tuple[dict[int, int], tuple[Worker, ...]]:
    """Who takes whose place, and which places stay vacant."""
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
    """What one worker keeps from generation to generation. The context calls it; without a driver it is never used."""

    def __init__(self) -> None:
        self._members: tuple[Worker, ...] = ()
        self._vacant: tuple[Worker, ...] = ()
        self._sets: dict[tuple[int, int], HandedDown] = {}
        self._objects: dict[tuple[int, int], list[weakref.ref[ProcessSet]]] = {}
        self._kept: list[ProcessSet] = []  # those passed to hvd.init(): they live on without anybody's reference
        self._next = (0, 0)
        self._adoptable: set[tuple[int, int]] = set()
        self.is_first = True  # of this worker's generations

    def word(self, birth: int, host: str) -> Word:
        alive = [one for key, one in self._sets.items() if one.by_init or self.objects(key)]
        return Word((birth, host), self._members, self._vacant, tuple(alive))

    def take(self, agreed: Agreed, generation: int, passed: Sequence[ProcessSet]) -> list[ProcessSet]:
        """Begin a generation. Returns those of the sets passed to hvd.init() that no other worker knows."""
        self._members, self._vacant, self.is_first = agreed.members, agreed.vacant, False
        self._sets = {one.key: one for one in agreed.sets}
        self._adoptable = set(self._sets)
        self._next = (generation, 0)
        unknown = []
        for process_set in passed:
            if any(process_set in self.objects(key) for key in self._sets):
                continue  # a survivor's own
            origin = tuple(process_set.ranks or ())
            key = next((one.key for one in agreed.sets if one.by_init and one.origin == origin), None)
            if key is None:
                unknown.append(process_set)
            else:
                self._objects.setdefault(key, []).insert(0, weakref.ref(process_set))
                self._kept.append(process_set)
        return unknown

    def handed_down(self) -> list[tuple[HandedDown, list[ProcessSet], tuple[int, ...]]]:
        """The sets to register: what is known of each, the objects that stand for it, and its ranks now."""
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
        """A set was registered by all ranks."""
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
        """Whether `added` may stand for a set that was handed down: once in a generation, as scripts add their sets
        again after each reset."""
        for key in self._adoptable:
            if registered in self.objects(key):
                self._adoptable.discard(key)
                if added is not registered:
                    self._objects[key].insert(0, weakref.ref(added))
                return True
        return False
