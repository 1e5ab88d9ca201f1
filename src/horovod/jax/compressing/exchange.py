# SPDX-License-Identifier: Apache-2.0
"""Sums of flat float32 values over all ranks, of which only what leaves a host is compressed.

The stages are those of horovod.torch.compressing.exchange. All lengths follow from the layout, so they are known when a
program is traced.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import jax
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
Memory: TypeAlias = dict[str, JaxArray]  # what one rank keeps from step to step, by name


class Exchange:
    """The collectives of one reduction. Without a name they match by their order, as all unnamed ones do.

    Each of them depends on the one before, and the result on the last one. JAX would otherwise leave out of a program
    those of which this rank needs no result, while other ranks wait for them.
    """

    def __init__(self, process_set: ProcessSet, name: str | None, layout: Layout) -> None:
        self.shares = layout.shares
        self.size = len(layout.hosts)  # the number of ranks
        self._layout = layout
        self._set = process_set
        self._name = name
        self._last: JaxArray | None = None

    def for_branch(self) -> Exchange:
        """Return the exchange for a branch of a program whose operands wait for all collectives so far."""
        return Exchange(self._set, self._name, self._layout)

    def after(self, values: JaxArray) -> JaxArray:
        """Return flat values that are there only when all collectives so far are done."""
        if self._last is None:
            return values
        values, last = jax.lax.optimization_barrier((values, self._last))  # for XLA
        return jnp.concatenate([values, last[:0].astype(values.dtype)])  # for JAX

    def wait_for(self, result: JaxArray) -> None:
        """Let what follows wait for the result of a collective."""
        self._last = result.reshape(-1)[:1]

    def alltoall(self, rows: JaxArray, splits: Sequence[int], received: int, stage: str) -> JaxArray:
        """Send each member its rows; `received` is the number of rows that this rank gets."""
        call = Call(ALLTOALL, self._set, self._named(stage), splits=tuple(splits), received=received)
        # JAX lowers equal calls once, and the name of each would then depend on what this rank sends.
        return self._run(replace(call, serial=next(_serials)), rows)

    def allreduce(self, values: JaxArray, stage: str, op: int = Sum) -> JaxArray:
        """Reduce one array over all members."""
        return self._run(Call(ALLREDUCE, self._set, self._named(stage), op), values)

    def _run(self, call: Call, values: JaxArray) -> JaxArray:
        # bind() knows whether a program is being traced, where a rank without a share sends a constant.
        result = bind(call, (self.after(values),))[0]
        self.wait_for(result)
        return result

    def _named(self, stage: str) -> str | None:
        return f"{self._name}.{stage}" if self._name else None

    # The stages on one host

    def summed_here(self, values: JaxArray) -> JaxArray:
        """Return the sum of this rank's share over the ranks of its host."""
        shares = self.shares
        if shares.largest == 1:
            return values
        bounds = shares.bounds(values.size)
        length = 0 if shares.mine is None else bounds[shares.mine + 1] - bounds[shares.mine]
        here = len(shares.here)
        got = self.alltoall(values, shares.splits_to_owners(bounds), here * length, "reduce").reshape(here, length)
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
        return self.alltoall(sent, shares.splits_to_host(total.size), values, "gather")

    # The stages between hosts

    def in_two_stages(self, share: JaxArray, codec: Codec, memory: Memory) -> tuple[JaxArray, Memory]:
        """Return the sum of a share over all hosts, and what messages of a codec whose sums need it again have lost.

        The owners of a share divide it into chunks. Each adds up one chunk of all hosts and sends the sum to the
        others.
        """
        shares = self.shares
        hosts = len(shares.peers)  # 0 on a rank without a share, which takes part without values
        cuts = even_bounds(share.size, hosts) if hosts else [0]
        lengths = [end - start for start, end in itertools.pairwise(cuts)]
        sizes = [_wire_bytes(codec, length) for length in lengths]
        p = share + memory["residual"] if "residual" in memory else share
        messages = [_encoded(codec, p[start:end]) for start, end in itertools.pairwise(cuts)]
        sent = _joined([wire for wire, _ in messages], jnp.uint8)
        mine = lengths[shares.peer_index] if hosts else 0
        own = _wire_bytes(codec, mine)
        got = self.alltoall(sent, shares.splits_to_peers(sizes), hosts * own, "chunks")
        chunk = decode_sum(codec, got.reshape(hosts, own), mine) if mine else jnp.zeros(0, jnp.float32)
        if "server" in memory:
            chunk = chunk + memory["server"]
        wire, server = _encoded(codec, chunk)
        replies = self.alltoall(jnp.tile(wire, hosts), shares.splits_to_peers([own] * hosts), sum(sizes), "sums")
        totals, at = [], 0
        for length, size in zip(lengths, sizes, strict=True):
            if length:
                totals.append(decode(codec, replies[at : at + size], length))
            at += size
        left = _joined([rest for _, rest in messages], jnp.float32)
        return _joined(totals, jnp.float32), {"residual": left, "server": server}

    def of_largest(self, share: JaxArray, codec: Codec, memory: Memory) -> tuple[JaxArray, Memory]:
        """Return the sum of a share's largest values over all hosts, and what was not sent. Every owner adds up."""
        shares = self.shares
        hosts = len(shares.peers)
        wire, left = _encoded(codec, share + memory["residual"] if "residual" in memory else share)
        splits = shares.splits_to_peers([wire.size] * hosts)
        got = self.alltoall(jnp.tile(wire, hosts), splits, hosts * wire.size, "largest")
        total = decode_sum(codec, got.reshape(hosts, wire.size), share.size) if share.size else share
        return total, {"residual": left}


def _wire_bytes(codec: Codec, length: int) -> int:
    return codec.wire_bytes(length) if length else 0


def _encoded(codec: Codec, values: JaxArray) -> tuple[JaxArray, JaxArray]:
    """Return a message and what it lacks; nothing for no values."""
    return encode(codec, values) if values.size else (jnp.zeros(0, jnp.uint8), values)


def _joined(arrays: Sequence[JaxArray], dtype: Any) -> JaxArray:
    return jnp.concatenate([jnp.zeros(0, dtype), *arrays])
