# SPDX-License-Identifier: Apache-2.0
"""ProcessSet: a group of ranks that run collectives among themselves.

A ProcessSet is only a description until a context registers it. Registration sets its `membership`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from horovod.common.membership import Membership, default_memberships
from horovod.common.util import is_iterable

if TYPE_CHECKING:
    from horovod._engine import Member


class ProcessSet:
    """Ranks that run collectives among themselves.

    Register a set with hvd.init(process_sets=...) or hvd.add_process_set(), then pass it as `process_set`.

    Args:
        ranks_or_comm: List of ranks, in any order, or a communicator of mpi4py.

    Raises:
        ValueError: The argument is neither a list of integers nor a communicator.

    Example:
        >>> first = hvd.ProcessSet([0])
        >>> first.size() is None  # on 2 ranks: True
    """

    def __init__(self, ranks_or_comm: Any) -> None:
        self._id: int | None = None
        self.ranks: list[int] | None = None
        self.mpi_comm: Any = None
        self.membership: Membership | None = None
        self.native: Member | None = None  # membership for native calls; None if this process is not a member
        if is_iterable(ranks_or_comm):
            self.ranks = sorted(_integers(ranks_or_comm))
        elif hasattr(ranks_or_comm, "Get_rank"):
            self.mpi_comm = ranks_or_comm
        else:
            raise ValueError(f"A process set is made from a list of ranks, not from {ranks_or_comm!r}")

    @property
    def process_set_id(self) -> int | None:
        """Return the id by which the engine knows the set.

        A program may assign an id. The object then stands for the registered set with that id, if there is one.

        Returns:
            The id; None while the set is not registered.
        """
        return self._id

    @process_set_id.setter
    def process_set_id(self, set_id: int | None) -> None:
        if self.membership is not None and self.membership.id != set_id:
            self.membership = self.native = None  # operations then look up the set by its id
        self._id = set_id

    def size(self) -> int | None:
        """Return the number of ranks in the set.

        Returns:
            The number; None while the set is not registered.
        """
        member = self._registered()
        return None if member is None else member.size

    def rank(self) -> int | None:
        """Return this process's number within the set.

        Returns:
            The number, counted from 0; None while the set is not registered.

        Raises:
            ValueError: This process is not a member.
        """
        member = self._registered()
        if member is not None and member.index < 0:
            raise ValueError(f"This process is not a member of {self}")
        return None if member is None else member.index

    def included(self) -> bool | None:
        """Return True if this process is a member of the set.

        Returns:
            True or False; None while the set is not registered.
        """
        member = self._registered()
        return None if member is None else member.index >= 0

    def _registered(self) -> Membership | None:
        if self.membership is not None or self._id is None:
            return self.membership
        found = default_memberships.get(self._id)
        return None if found is None else found[0]

    def bind(self, membership: Membership, native: Member | None = None) -> None:
        """Attach the membership. The context calls this once the engine knows the set."""
        self.membership = membership
        self.native = native
        self._id = membership.id
        self.ranks = list(membership.ranks)

    def invalidate(self) -> None:
        """Drop the membership. The context calls this when the engine forgets the set."""
        self.membership = None
        self.native = None
        self._id = None

    def __deepcopy__(self, memo: object) -> ProcessSet:
        """Return the set itself, so that copies of a module or an optimizer refer to one set."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a set as its ranks, unregistered. The global set becomes that of the process that unpickles it."""
        if self is global_process_set:
            return _get_global_process_set, ()
        return ProcessSet, (self.ranks if self.mpi_comm is None else self.mpi_comm,)

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


def _integers(ranks: Any) -> list[int]:
    result = []
    for rank in ranks:
        if isinstance(rank, bool) or not hasattr(rank, "__index__"):
            raise ValueError(f"The ranks of a process set must be integers, not {rank!r}")
        result.append(rank.__index__())
    return result


def check_ranks(ranks: Sequence[int], world_size: int) -> tuple[int, ...]:
    """Return the ranks of a valid set, sorted.

    Raise ValueError for no ranks, duplicates, or ranks that do not exist.
    """
    if not ranks:
        raise ValueError("A process set needs at least one rank")
    if len(set(ranks)) != len(ranks):
        raise ValueError(f"A process set contains a rank twice: {list(ranks)}")
    outside = [rank for rank in ranks if not 0 <= rank < world_size]
    if outside:
        raise ValueError(f"A process set contains ranks {outside}, but the ranks of this job are 0 to {world_size - 1}")
    return tuple(sorted(ranks))


def _make_global_process_set() -> ProcessSet:
    result = ProcessSet([])
    result.process_set_id = 0
    result.ranks = None
    return result


# The set of all ranks of the job. Its id is always 0, and hvd.init() fills in its ranks.
global_process_set = _make_global_process_set()


def _get_global_process_set() -> ProcessSet:
    return global_process_set
