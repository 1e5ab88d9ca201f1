# SPDX-License-Identifier: Apache-2.0
"""Sums of flat float32 values over all ranks, in which only data between hosts is compressed.

The stages are those of horovod.torch.compressing.exchange. All lengths follow from the layout, so they are known when a
program is traced.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import jax.numpy as jnp

from horovod.common.calls import ALLREDUCE, ALLTOALL, Call
from horovod.common.host_shares import even_bounds
from horovod.common.process_sets import ProcessSet
from horovod.common.rules import Sum
from horovod.jax.adapter import JaxArray
from horovod.jax.codecs import Codec, decode, decode_sum, encode
from horovod.jax.primitive import bind
from horovod.jax.rank_state import Layout

_serials = itertools.count(1)
Memory: TypeAlias = dict[str, JaxArray]  # arrays that one rank keeps from step to step, by name


class Exchange:
    """Collectives of one reduction. Without a name they match by their order, as all unnamed ones do.

    Each collective depends on values of the one before, and the result depends on the last one. Otherwise JAX would
    drop collectives whose results this rank does not need, and XLA would run the others in any order, while other ranks
    wait for the first one.
    """

    def __init__(self, process_set: ProcessSet, name: str | None, layout: Layout) -> None:
        self.shares = layout.shares
        self.size = len(layout.hosts)  # number of ranks
        self._layout = layout
        self._set = process_set
        self._name = name
        self._last: JaxArray | None = None

    def for_branch(self, token: JaxArray) -> Exchange:
        """Return the exchange for a branch of a program; `token`, from token(), is one of the branch's operands."""
        branch = Exchange(self._set, self._name, self._layout)
        branch.wait_for(token)
        return branch

    def token(self) -> JaxArray:
        """Return one value that depends on all collectives so far."""
        return jnp.zeros(1, jnp.float32) if self._last is None else self._last.astype(jnp.float32)

    def after(self, values: JaxArray) -> JaxArray:
        """Return flat values, unchanged but dependent on all collectives so far."""
        if self._last is None:
            return values
        return values + _zero(self._last).astype(values.dtype)

    def wait_for(self, result: JaxArray) -> None:
        """Make later collectives depend on the result of a collective."""
        self._last = result.reshape(-1)[:1]

    def alltoall(self, rows: JaxArray, splits: Sequence[int], received: Sequence[int], stage: str) -> JaxArray:
        """Send each member its rows; `received` lists the numbers of rows that this rank gets from each member."""
        splits, received = list(splits), list(received)
        me, is_empty = self._layout.me, not sum(splits) or not sum(received)
        if is_empty:  # empty data creates no dependency, so this rank sends itself one row
            start = sum(splits[:me])
            rows = jnp.concatenate([rows[:start], jnp.zeros(1, rows.dtype), rows[start:]])
            splits[me], received[me] = splits[me] + 1, received[me] + 1
        call = Call(ALLTOALL, self._set, self._named(stage), splits=tuple(splits), received=sum(received))
        # JAX lowers equal calls only once, so without a serial the calls' names would depend on what this rank sends.
        result = self._run(replace(call, serial=next(_serials)), rows)
        if not is_empty:
            return result
        at = sum(received[:me])
        self.wait_for(result[at : at + 1])
        return jnp.concatenate([result[:at], result[at + 1 :]])

    def allreduce(self, values: JaxArray, stage: str, op: int = Sum) -> JaxArray:
        """Reduce one array over all members."""
        return self._run(Call(ALLREDUCE, self._set, self._named(stage), op), values)

    def _run(self, call: Call, values: JaxArray) -> JaxArray:
        # bind() also knows that a program is traced if the value is a constant, as on a rank without a share.
        result = bind(call, (self.after(values),))[0]
        self.wait_for(result)
        return result

    def _named(self, stage: str) -> str | None:
        return f"{self._name}.{stage}" if self._name else None

    # Stages on one host

    def summed_here(self, values: JaxArray) -> JaxArray:
        """Return the sum of this rank's share over the ranks of its host."""
        shares = self.shares
        if shares.largest == 1:
            return values
        bounds = shares.bounds(values.size)
        length = 0 if shares.mine is None else bounds[shares.mine + 1] - bounds[shares.mine]
        here = len(shares.here)
        got = self.alltoall(values, shares.splits_to_owners(bounds), shares.splits_to_host(length), "reduce")
        got = got.reshape(here, length)
        total = got[0]
        for row in range(1, here):
            total = total + got[row]
        return total

    def gathered_here(self, total: JaxArray, values: int) -> JaxArray:
        """Return the shares of all owners on this rank's host, one after the other."""
        shares = self.shares
        if shares.largest == 1:
            return total
        sent = jnp.tile(total, len(shares.here))
        received = shares.splits_to_owners(shares.bounds(values))
        return self.alltoall(sent, shares.splits_to_host(total.size), received, "gather")

    # Stages between hosts

    def in_two_stages(self, share: JaxArray, codec: Codec, memory: Memory) -> tuple[JaxArray, Memory]:
        """Return the sum of a share over all hosts, with a codec whose sums are encoded again, and what messages lost.

        The share's owners, one per host, divide it into chunks. Each owner adds up its chunk of all hosts and sends the
        sum to the others.
        """
        shares = self.shares
        hosts = len(shares.peers)  # 0 on a rank that owns no share; it takes part without values
        cuts = even_bounds(share.size, hosts) if hosts else [0]
        lengths = [end - start for start, end in itertools.pairwise(cuts)]
        sizes = [_wire_bytes(codec, length) for length in lengths]
        p = share + memory["residual"] if "residual" in memory else share
        messages = [_encoded(codec, p[start:end]) for start, end in itertools.pairwise(cuts)]
        sent = _joined([wire for wire, _ in messages], jnp.uint8)
        mine = lengths[shares.peer_index] if hosts else 0
        own = _wire_bytes(codec, mine)
        to_owner, from_owner = shares.splits_to_peers(sizes), shares.splits_to_peers([own] * hosts)
        got = self.alltoall(sent, to_owner, from_owner, "chunks")
        chunk = decode_sum(codec, got.reshape(hosts, own), mine) if mine else jnp.zeros(0, jnp.float32)
        if "server" in memory:
            chunk = chunk + memory["server"]
        wire, server = _encoded(codec, chunk)
        replies = self.alltoall(jnp.tile(wire, hosts), from_owner, to_owner, "sums")
        totals, at = [], 0
        for length, size in zip(lengths, sizes, strict=True):
            if length:
                totals.append(decode(codec, replies[at : at + size], length))
            at += size
        left = _joined([rest for _, rest in messages], jnp.float32)
        return _joined(totals, jnp.float32), {"residual": left, "server": server}

    def of_largest(self, share: JaxArray, codec: Codec, memory: Memory) -> tuple[JaxArray, Memory]:
        """Return the sum of a share's largest values over all hosts, computed by every owner, and the unsent rest."""
        shares = self.shares
        hosts = len(shares.peers)
        wire, left = _encoded(codec, share + memory["residual"] if "residual" in memory else share)
        splits = shares.splits_to_peers([wire.size] * hosts)
        got = self.alltoall(jnp.tile(wire, hosts), splits, splits, "largest")
        total = decode_sum(codec, got.reshape(hosts, wire.size), share.size) if share.size else share
        return total, {"residual": left}


def _zero(array: JaxArray) -> JaxArray:
    """Return a zero that depends on the first value of an array, and that XLA cannot recognise as zero."""
    value = array.reshape(-1)[0].astype(jnp.float32)
    return ((value != value) & (value == value)).astype(jnp.uint8)


def _wire_bytes(codec: Codec, length: int) -> int:
    return codec.wire_bytes(length) if length else 0


def _encoded(codec: Codec, values: JaxArray) -> tuple[JaxArray, JaxArray]:
    """Return a message and what it lacks of the values; an empty message for no values."""
    return encode(codec, values) if values.size else (jnp.zeros(0, jnp.uint8), values)


def _joined(arrays: Sequence[JaxArray], dtype: Any) -> JaxArray:
    return jnp.concatenate([jnp.zeros(0, dtype), *arrays])
