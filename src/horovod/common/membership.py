# SPDX-License-Identifier: Apache-2.0
"""Memberships: a registered process set as one rank sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod._engine import Numbering
from horovod.common.rules import check_name

if TYPE_CHECKING:
    from horovod._engine import Member, World


class Membership:
    """Registered set as this rank sees it, with all values that an operation needs."""

    __slots__ = ("id", "index", "numbering", "rank", "ranks", "size", "world")

    def __init__(self, world: World, set_id: int, ranks: tuple[int, ...], my_rank: int) -> None:
        self.world = world
        self.id = set_id
        self.ranks = ranks
        self.rank = my_rank  # this process's rank in the world
        self.size = len(ranks)
        self.index = ranks.index(my_rank) if my_rank in ranks else -1
        self.numbering = Numbering()

    def full_name(self, operation: str, name: str | None) -> str:
        """Return the name by which ranks match their operations.

        Unnamed operations are matched by their order within one set. Named operations are not counted. So ranks that
        did different work in other sets, or whose gradients came in another order, still agree.
        """
        return check_name(f"{operation}.{name}") if name else self.numbering.next(operation)

    def restart_numbers(self) -> None:
        """Count unnamed operations from 1 again, because ranks that called hvd.join() early have issued fewer."""
        self.numbering.restart()


class EmptyMembership(Membership):
    """Membership of a set whose workers have all left an elastic job.

    Its size and ranks can be queried, but operations on it are refused.
    """

    __slots__ = ("text",)

    def __init__(self, world: World, origin: tuple[int, ...], births: tuple[int, ...]) -> None:
        super().__init__(world, -1, (), -1)
        self.text = (
            f"The process set that was made with ranks {list(origin)} is empty: workers {list(births)} have left the "
            "job, and nobody has come in their place"
        )


# Memberships of the registered sets by id, each with the form for native calls (None if this rank is not a member).
Memberships = dict[int, tuple[Membership, "Member | None"]]

# The memberships in the world of horovod.common.context.default_context.
default_memberships: Memberships = {}
