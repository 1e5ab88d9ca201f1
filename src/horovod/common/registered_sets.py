# SPDX-License-Identifier: Apache-2.0
"""Process sets that are registered in one world, by their ids, with this rank's membership of each.

The context makes ranks agree before a set is registered here.
"""

from __future__ import annotations

from typing import Protocol

from horovod._engine import Member, World
from horovod.common.membership import EmptyMembership, Membership, Memberships
from horovod.common.process_set import ProcessSet

_NO_SUCH_SET = "There is no process set with id {}: it was removed, or never registered"


class Observer(Protocol):
    """Object that is notified when a set is registered or removed.

    Framework APIs whose compiled programs are used in several worlds need this.
    """

    def bound(self, process_set: ProcessSet, /) -> None: ...

    def unbound(self, process_set: ProcessSet, /) -> None:
        """Handle the removal of a set. Its membership is still there, because the engine forgets the set afterwards."""


class RegisteredSets:
    """Table of the registered sets. It is empty without a world, but keeps its observers for the next world."""

    def __init__(self, members: Memberships) -> None:
        """Create an empty table that keeps the memberships of its sets in `members`."""
        self._sets: dict[int, ProcessSet] = {}
        self._members = members
        # Further objects that stand for a registered set, and objects of empty sets.
        self._aliases: list[ProcessSet] = []
        self._observers: list[Observer] = []

    # Registration and removal

    def observe(self, observer: Observer) -> None:
        """Add an observer, and report to it all sets that exist already."""
        self._observers.append(observer)
        for process_set in self._sets.values():
            observer.bound(process_set)

    def bind(self, process_set: ProcessSet, world: World, set_id: int, ranks: tuple[int, ...], my_rank: int) -> None:
        """Record that the engine knows this set by this id from now on."""
        member = Membership(world, set_id, ranks, my_rank)
        included = member.index >= 0
        native = Member(world, set_id, member.index, list(ranks), member.numbering) if included else None
        process_set.bind(member, native)
        self._sets[set_id], self._members[set_id] = process_set, (member, native)
        self._tell_bound(process_set)

    def adopt(self, set_id: int, added: ProcessSet) -> None:
        """Let another object stand for a set that is registered already. All ranks do this together."""
        if self._sets[set_id] is not added:
            self._aliases.append(self._sets[set_id])
            self._sets[set_id] = added
            added.bind(*self._members[set_id])
            self._tell_bound(added)

    def bind_beside(self, process_set: ProcessSet, registered: ProcessSet) -> None:
        """Bind another object to a registered set, in addition to the object in the table."""
        assert registered.membership is not None
        process_set.bind(*self._members[registered.membership.id])
        self._aliases.append(process_set)

    def bind_empty(self, process_set: ProcessSet, membership: EmptyMembership) -> None:
        process_set.bind(membership)
        self._aliases.append(process_set)

    def tell_unbound(self, set_id: int) -> ProcessSet:
        """Notify observers that a set ends, before the engine forgets it. Return the set."""
        process_set = self._sets[set_id]
        process_set.bind(*self._members[set_id])  # the user may have assigned it another id
        for observer in self._observers:
            observer.unbound(process_set)
        return process_set

    def drop(self, set_id: int, named: ProcessSet) -> None:
        """Remove a set with all objects that stand for it; `named` is one of them."""
        beside = [alias for alias in self._aliases if alias.process_set_id == set_id]
        for process_set in (named, self._sets.pop(set_id), *beside):
            process_set.invalidate()
        del self._members[set_id]

    def tell_all_unbound(self) -> None:
        for set_id in self._sets:
            self.tell_unbound(set_id)

    def drop_all(self) -> None:
        """Remove all sets, because the world has ended."""
        for process_set in (*self._sets.values(), *self._aliases):
            process_set.invalidate()
        self._sets.clear()
        self._aliases.clear()
        self._members.clear()

    def _tell_bound(self, process_set: ProcessSet) -> None:
        for observer in self._observers:
            observer.bound(process_set)

    # Queries

    def membership_of(self, process_set: ProcessSet) -> Membership:
        """Return the membership of the registered set that has this object's id.

        Raise ValueError if no set has the id, or this rank is not a member.
        """
        member = process_set.membership or self.membership_with_id(self.check_registered(process_set))
        assert member is not None
        if isinstance(member, EmptyMembership):
            raise ValueError(member.text)
        if member.index < 0:
            raise ValueError(f"Rank {member.rank} is not a member of {process_set}")
        return member

    def native_with_id(self, set_id: int) -> Member | None:
        """Return the membership for native calls; None if this rank is not a member."""
        return self._members[set_id][1]

    def membership_with_id(self, set_id: int) -> Membership | None:
        return self._members[set_id][0] if set_id in self._members else None

    def check_registered(self, process_set: ProcessSet) -> int:
        """Return the id of a set. Raise ValueError if the object has none, or no registered set has that id.

        Two objects with equal ranks are different sets: an object that was never registered cannot stand for one that
        was.
        """
        set_id = process_set.process_set_id
        if isinstance(process_set.membership, EmptyMembership):
            raise ValueError(process_set.membership.text)
        if set_id is None:
            raise ValueError(f"{process_set} is not registered: pass it to hvd.init() or hvd.add_process_set()")
        if set_id not in self._members:
            raise ValueError(_NO_SUCH_SET.format(set_id))
        return set_id

    def named_by(self, process_set: ProcessSet) -> ProcessSet | None:
        """Return the registered set that an object names by its id, usually the object itself."""
        return None if process_set.process_set_id is None else self._sets.get(process_set.process_set_id)

    def with_id(self, set_id: int) -> ProcessSet:
        """Return the set with this id. Raise ValueError if there is none, or if its object now has another id."""
        if set_id not in self._sets or self._sets[set_id].process_set_id != set_id:
            raise ValueError(_NO_SUCH_SET.format(set_id))
        return self._sets[set_id]

    def with_ranks(self) -> list[tuple[int, ProcessSet, tuple[int, ...]]]:
        """Return all sets with their ids and the ranks that the engine knows for them."""
        return [(set_id, process_set, self._members[set_id][0].ranks) for set_id, process_set in self._sets.items()]

    def ranks_by_id(self) -> dict[int, list[int]]:
        return {set_id: list(process_set.ranks or []) for set_id, process_set in sorted(self._sets.items())}
