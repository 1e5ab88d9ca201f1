# SPDX-License-Identifier: Apache-2.0
"""The process sets that are alive in one world: by their ids, with what this rank is in each of them.

How ranks agree to register a set is the context's affair.
"""

from __future__ import annotations

from typing import Protocol

from horovod._engine import Member, World
from horovod.common.process_sets import EmptyMembership, Membership, ProcessSet

_NO_SUCH_SET = "There is no process set with id {}: it was removed, or never registered"


class Observer(Protocol):
    """Hears when a set comes to life and when it goes: for doors whose compiled programs outlive worlds."""

    def bound(self, process_set: ProcessSet, /) -> None: ...

    def unbound(self, process_set: ProcessSet, /) -> None:
        """Before the engine forgets the set; its membership is still there."""


class RegisteredSets:
    """Empty while there is no world; observers stay from one world to the next."""

    def __init__(self) -> None:
        self._sets: dict[int, ProcessSet] = {}
        self._members: dict[int, tuple[Membership, Member | None]] = {}  # by id too: what the sets were bound to
        self._aliases: list[ProcessSet] = []  # that stand for a registered set beside the one in _sets, or are empty
        self._observers: list[Observer] = []

    # Coming and going

    def observe(self, observer: Observer) -> None:
        """Tell the observer of all sets, those that exist already first."""
        self._observers.append(observer)
        for process_set in self._sets.values():
            observer.bound(process_set)

    def bind(self, process_set: ProcessSet, world: World, set_id: int, ranks: tuple[int, ...], my_rank: int) -> None:
        """The engine knows this set by that id from now on."""
        member = Membership(world, set_id, ranks, my_rank)
        included = member.index >= 0
        native = Member(world, set_id, member.index, list(ranks), member.numbering) if included else None
        process_set.bind(member, native)
        self._sets[set_id], self._members[set_id] = process_set, (member, native)
        self._tell_bound(process_set)

    def adopt(self, set_id: int, added: ProcessSet) -> None:
        """Let an object stand for a set that is registered already, as all ranks do."""
        if self._sets[set_id] is not added:
            self._aliases.append(self._sets[set_id])
            self._sets[set_id] = added
            added.bind(*self._members[set_id])
            self._tell_bound(added)

    def bind_beside(self, process_set: ProcessSet, registered: ProcessSet) -> None:
        """Another object for the same set."""
        assert registered.membership is not None
        process_set.bind(*self._members[registered.membership.id])
        self._aliases.append(process_set)

    def bind_empty(self, process_set: ProcessSet, membership: EmptyMembership) -> None:
        process_set.bind(membership)
        self._aliases.append(process_set)

    def tell_unbound(self, set_id: int) -> ProcessSet:
        """Observers hear of the end of a set, which is returned, before the engine does."""
        process_set = self._sets[set_id]
        process_set.bind(*self._members[set_id])  # somebody may have assigned it another id
        for observer in self._observers:
            observer.unbound(process_set)
        return process_set

    def drop(self, set_id: int, named: ProcessSet) -> None:
        """Forget a set, with all objects that stand for it; `named` is one of them."""
        beside = [alias for alias in self._aliases if alias.process_set_id == set_id]
        for process_set in (named, self._sets.pop(set_id), *beside):
            process_set.invalidate()
        del self._members[set_id]

    def tell_all_unbound(self) -> None:
        for set_id in self._sets:
            self.tell_unbound(set_id)

    def drop_all(self) -> None:
        """The world is gone."""
        for process_set in (*self._sets.values(), *self._aliases):
            process_set.invalidate()
        self._sets.clear()
        self._aliases.clear()
        self._members.clear()

    def _tell_bound(self, process_set: ProcessSet) -> None:
        for observer in self._observers:
            observer.bound(process_set)

    # Questions

    def membership_of(self, process_set: ProcessSet, my_rank: int) -> Membership:
        """That of the set with this one's id; ValueError if no set has it, or this rank is not a member."""
        member = process_set.membership or self.membership_with_id(self.check_registered(process_set))
        assert member is not None
        if isinstance(member, EmptyMembership):
            raise ValueError(member.text)
        if member.index < 0:
            raise ValueError(f"Rank {my_rank} is not a member of {process_set}")
        return member

    def native_with_id(self, set_id: int) -> Member | None:
        """For native calls; None if this rank is not a member."""
        return self._members[set_id][1]

    def membership_with_id(self, set_id: int) -> Membership | None:
        return self._members[set_id][0] if set_id in self._members else None

    def check_registered(self, process_set: ProcessSet) -> int:
        """The id of a set; ValueError if the object has none, or one that no set has. Two objects with the same ranks
        are not the same set: one that was never registered cannot stand for another that was."""
        set_id = process_set.process_set_id
        if isinstance(process_set.membership, EmptyMembership):
            raise ValueError(process_set.membership.text)
        if set_id is None:
            raise ValueError(f"{process_set} is not registered: pass it to hvd.init() or hvd.add_process_set()")
        if set_id not in self._members:
            raise ValueError(_NO_SUCH_SET.format(set_id))
        return set_id

    def named_by(self, process_set: ProcessSet) -> ProcessSet | None:
        """The set that an object names by its id, which is mostly that object."""
        return None if process_set.process_set_id is None else self._sets.get(process_set.process_set_id)

    def with_id(self, set_id: int) -> ProcessSet:
        """ValueError if there is none, or if somebody has assigned another id to it."""
        if set_id not in self._sets or self._sets[set_id].process_set_id != set_id:
            raise ValueError(_NO_SUCH_SET.format(set_id))
        return self._sets[set_id]

    def with_ranks(self) -> list[tuple[int, ProcessSet, tuple[int, ...]]]:
        """All sets with their ids, and the ranks that they have in the engine."""
        return [(set_id, process_set, self._members[set_id][0].ranks) for set_id, process_set in self._sets.items()]

    def ranks_by_id(self) -> dict[int, list[int]]:
        return {set_id: list(process_set.ranks or []) for set_id, process_set in sorted(self._sets.items())}
