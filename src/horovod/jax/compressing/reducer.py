# SPDX-License-Identifier: Apache-2.0
"""Reduction of trees by one method. All ranks get equal results, and either all keep new residuals or none does."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.numpy as jnp

from horovod.common.calls import ALLREDUCE, Call
from horovod.common.compression_methods import CompressionMethod, Dgc, Int8, OneBit, PowerSGD, TopK
from horovod.common.process_sets import ProcessSet
from horovod.common.rules import Average, Max, Sum
from horovod.jax.adapter import JaxArray, Tree
from horovod.jax.compressing.dgc import DgcWay
from horovod.jax.compressing.division import Division, are_finite, divided, joined
from horovod.jax.compressing.exchange import Exchange, Memory
from horovod.jax.compressing.methods import CodedWay, Kept, Way
from horovod.jax.compressing.power import PowerWay
from horovod.jax.primitive import bind
from horovod.jax.rank_state import Layout, RankState


class CompressionState(NamedTuple):
    """State that compression keeps from step to step.

    Attributes:
        steps: Steps so far whose gradients were finite on all ranks.
            shared: Arrays that are equal on all ranks, by name.
            kept: State of this rank. It differs between ranks, so save it on every rank.
    """

    steps: JaxArray
    shared: Memory
    kept: RankState


def way_of(method: CompressionMethod) -> Way:
    """Return the implementation of a method."""
    if isinstance(method, Int8 | OneBit | TopK):
        return CodedWay(method)
    if isinstance(method, PowerSGD):
        return PowerWay(method)
    if isinstance(method, Dgc):
        return DgcWay(method)
    raise ValueError(f"horovod.jax does not support compression={method.describe()}")


def is_method(compression: Any) -> TypeGuard[CompressionMethod]:
    """Return True if a compression is a method with arguments; raise TypeError if it is the class of one."""
    if isinstance(compression, type) and issubclass(compression, CompressionMethod):
        raise TypeError(
            f"compression={compression.__name__} is a class: pass an instance, such as "
            f"hvd.Compression.{compression.name}()"
        )
    return isinstance(compression, CompressionMethod)


def reducer_of(
    method: CompressionMethod, op: int, predivide: float, name: str | None, process_set: ProcessSet
) -> Reducer:
    """Return the reducer of an optimizer; raise ValueError if the method does not support the operation."""
    if op not in (Average, Sum):
        raise ValueError(
            f"hvd.DistributedOptimizer with compression={method.describe()} supports op=hvd.Average and op=hvd.Sum only"
        )
    return Reducer(way_of(method), op, 1.0 / predivide, predivide, name, process_set)


@dataclass(frozen=True)
class Reducer:
    """Reductions of one optimizer; `prescale` and `postscale` apply to dense leaves."""

    way: Way
    op: int
    prescale: float
    postscale: float
    name: str | None
    process_set: ProcessSet

    def _division(self, tree: Tree) -> Division:
        return Division(tree, self.method, self.way.chooses)

    @property
    def method(self) -> CompressionMethod:
        return self.way.method

    def first_state(self, params: Tree) -> CompressionState:
        """Return the state before the first step, for parameters with the shapes of `params`."""
        division = self._division(params)
        division.check_exclude(self.method)
        kept = RankState.zeros(division.count, self.method.scope, self.process_set, self.way.kinds())
        shared = self.way.first_shared(division, _is_dense(kept.layout, division))
        return CompressionState(jnp.zeros((), jnp.int32), shared, kept)

    def in_present_world(self, tree: Tree, state: CompressionState) -> CompressionState:
        """Return a state whose arrays fit the present ranks; arrays that do not are replaced by initial ones."""
        division = self._division(tree)
        kept = state.kept.in_present_world()
        if kept.values != division.count:
            raise ValueError(
                f"compression={self.method.describe()} has a state for {kept.values} values, but the gradients that it "
                f"compresses have {division.count}: make the state with optimizer.init(params) for these parameters"
            )
        is_dense = _is_dense(kept.layout, division)
        shared = state.shared
        if {name: it.size for name, it in shared.items()} != self.way.shared_lengths(division, is_dense):
            shared = self.way.first_shared(division, is_dense)
        return CompressionState(state.steps, shared, kept)

    def reduce(self, tree: Tree, state: CompressionState) -> tuple[Tree, CompressionState]:
        """Return the reduced tree and the next state."""
        division = self._division(tree)
        if not division.leaves:
            return tree, state
        layout = state.kept.layout
        exchange = Exchange(self.process_set, self.name, layout)
        leaves = self.way.prepared(division, len(layout.hosts))
        kept = Kept(state.kept.arrays, state.shared)
        if _is_dense(layout, division):
            reduced = self._agreed(division, leaves, layout, exchange)
            steps = self._agreed_steps(exchange, state.steps)
            reduced, shared = self.way.after_dense(reduced, kept.shared)
            result, left = division.whole(reduced), Kept(kept.mine, shared)
        else:
            dense = self._agreed(division, [leaves[number] for number in division.dense], layout, exchange)
            steps = self._agreed_steps(exchange, state.steps)
            dense, shared = self.way.after_dense(dense, kept.shared)
            chosen, left = self._compressed(exchange, division, leaves, kept, steps)
            left = Kept(left.mine, {**shared, **left.shared})
            result, reduced = division.restored(chosen, dense), [*chosen, *dense]
        old = CompressionState(steps, state.shared, state.kept)
        new = CompressionState(steps + 1, left.shared, state.kept.replaced(left.mine))
        is_finite = are_finite(reduced)  # all ranks have the whole result, so they decide alike
        return result, jax.tree_util.tree_map(lambda one, other: jnp.where(is_finite, one, other), new, old)

    def _agreed_steps(self, exchange: Exchange, steps: JaxArray) -> JaxArray:
        """Return the most steps of any rank: ranks with different ones would send messages of different lengths."""
        return exchange.allreduce(steps, "step", Max) if self.way.counts_steps else steps

    def _compressed(
        self, exchange: Exchange, division: Division, leaves: list[JaxArray], kept: Kept, steps: JaxArray
    ) -> tuple[list[JaxArray], Kept]:
        """Return the reduced compressed leaves, and the arrays to keep."""
        chosen = [leaves[number] for number in division.chosen]
        # Begin the exchange only after _agreed(), in which ranks that disagree get an error.
        total, left = self.way.sum(exchange, exchange.after(joined(chosen)), division, kept, steps)
        total = exchange.after(total)
        if self.op == Average:
            total = total / exchange.size
        return divided(total, chosen), left

    def _agreed(self, division: Division, sent: list[JaxArray], layout: Layout, exchange: Exchange) -> list[JaxArray]:
        """Reduce the dense leaves, and make ranks compare which leaves they compress, how, and for which hosts.

        A rank that compresses nothing calls allreduce() with the leaves instead, under the same name.
        """
        hosts = zlib.crc32(repr(layout.hosts).encode())
        how = (
            f", with compression {self.method.describe()}, {'sum' if self.op == Sum else 'average'}, hosts {hosts:08x}"
        )
        call = Call(
            ALLREDUCE,
            self.process_set,
            self.name,
            self.op,
            self.prescale,
            self.postscale,
            grouped=True,
            uncompressed=len(division.leaves),
            contents=division.contents(how),
        )
        flag, *results = bind(call, (exchange.after(jnp.zeros(1, jnp.float32)), *sent))
        exchange.wait_for(flag)
        return results


def _is_dense(layout: Layout, division: Division) -> bool:
    """Return True if nothing is compressed, because no data leaves a host or all leaves stay dense."""
    return not division.chosen or layout.is_dense
