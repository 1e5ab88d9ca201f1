# SPDX-License-Identifier: Apache-2.0
"""Arrays in a tree that belong to one rank, such as residuals, and are never sent to other ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from horovod.common.context import default_context
from horovod.common.context_numbers import number_of, set_of
from horovod.common.host_shares import HostShares, even_bounds
from horovod.common.log import logger
from horovod.common.process_sets import ProcessSet
from horovod.jax.adapter import JaxArray, Tree


@dataclass(frozen=True)
class Layout:
    """Ranks that exchange values, as a compiled program knows them. If it changes, the program is compiled again.

    Attributes:
        hosts: The number of the host of each member. With scope="all" each rank counts as a host.
        me: This rank's index among the members.
    """

    hosts: tuple[int, ...]
    me: int

    @property
    def shares(self) -> HostShares:
        """Shares of this exchange, as this rank sees them."""
        return _shares_of(self)

    @property
    def is_dense(self) -> bool:
        """Return True if all ranks are on one host, so that nothing is compressed."""
        return self.shares.hosts == 1

    def lengths(self, values: int) -> tuple[int, int, int]:
        """Return where this rank's share of the values begins, its length, and the length of its chunk of the share."""
        shares = self.shares
        if shares.mine is None or self.is_dense:
            return 0, 0, 0
        bounds = shares.bounds(values)
        length = bounds[shares.mine + 1] - bounds[shares.mine]
        cuts = even_bounds(length, shares.hosts)
        return bounds[shares.mine], length, cuts[shares.peer_index + 1] - cuts[shares.peer_index]


@functools.lru_cache(maxsize=64)
def _shares_of(layout: Layout) -> HostShares:
    return HostShares([str(host) for host in layout.hosts], layout.me)


def present_layout(process_set: ProcessSet, scope: str) -> Layout:
    """Return the layout of a process set in the present world."""
    member = default_context.membership_of(process_set)
    if scope == "all":
        return Layout(tuple(range(member.size)), member.index)
    names = [default_context.hosts[rank] for rank in member.ranks]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return Layout(tuple(numbers[name] for name in names), member.index)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["arrays"],
    meta_fields=["values", "layout", "scope", "set_number", "kinds"],
)
@dataclass(frozen=True)
class RankState:
    """State that one rank keeps from step to step for flat values.

    Attributes:
            arrays: Kept arrays, by name.
            values: Number of values that are exchanged.
            layout: Layout for which the arrays have the right lengths.
        scope: "host" or "all".
            set_number: Number of the process set; see horovod.common.context_numbers.
            kinds: Name of each array, and the part whose length it has: "values", "share" or "chunk".
    """

    arrays: dict[str, JaxArray] = field(repr=False)
    values: int
    layout: Layout
    scope: str
    set_number: int
    kinds: tuple[tuple[str, str], ...]

    @staticmethod
    def zeros(values: int, scope: str, process_set: ProcessSet, kinds: dict[str, str]) -> RankState:
        """Return the state before the first step."""
        layout, number = present_layout(process_set, scope), number_of(process_set)
        return RankState({}, values, layout, scope, number, tuple(sorted(kinds.items()))).cleared()

    def cleared(self) -> RankState:
        """Return this state with all arrays zero."""
        _, share, chunk = self.layout.lengths(self.values)
        length = {"values": 0 if self.layout.is_dense else self.values, "share": share, "chunk": chunk}
        return self.replaced({name: jnp.zeros(length[kind], jnp.float32) for name, kind in self.kinds})

    def replaced(self, arrays: dict[str, JaxArray]) -> RankState:
        """Return this state with other arrays."""
        return RankState(arrays, self.values, self.layout, self.scope, self.set_number, self.kinds)

    def in_present_world(self) -> RankState:
        """Return this state for the present hosts and ranks, with zeros if this rank's share has changed."""
        layout = present_layout(set_of(self.set_number), self.scope)
        if layout == self.layout:
            return self
        moved = RankState(self.arrays, self.values, layout, self.scope, self.set_number, self.kinds)
        if _owner(layout, self.values) == _owner(self.layout, self.values):
            return moved
        if self.arrays:
            logger.info(
                "The hosts' shares of the values have changed: dropping the residuals that compression has kept"
            )
        return moved.cleared()


def _owner(layout: Layout, values: int) -> tuple[int, ...]:
    """Return the numbers that decide whether kept arrays are still valid."""
    shares = layout.shares
    # Leave out the rank's index, because arrays with the length "values" do not depend on it.
    return *layout.lengths(values), shares.hosts, shares.peer_index


def is_rank_state(node: Any) -> bool:
    """Return True if a node of a tree is a RankState."""
    return isinstance(node, RankState)


def in_present_world(tree: Tree) -> Tree:
    """Return a tree in which this rank's state fits the present ranks."""
    return _with_rank_states(RankState.in_present_world, tree)


def shared_leaves(tree: Tree) -> list[Any]:
    """Return the leaves of a tree that do not belong to one rank."""
    return [leaf for leaf in jax.tree_util.tree_leaves(tree, is_leaf=is_rank_state) if not is_rank_state(leaf)]


def with_shared_leaves(tree: Tree, leaves: list[Any]) -> Tree:
    """Return a tree with other shared leaves, and with zeros in this rank's own state."""
    present, structure = jax.tree_util.tree_flatten(tree, is_leaf=is_rank_state)
    others = iter(leaves)
    return structure.unflatten([one.cleared() if is_rank_state(one) else next(others) for one in present])


def _with_rank_states(change: Callable[[RankState], RankState], tree: Tree) -> Tree:
    return jax.tree_util.tree_map(
        lambda leaf: change(leaf) if is_rank_state(leaf) else leaf, tree, is_leaf=is_rank_state
    )
