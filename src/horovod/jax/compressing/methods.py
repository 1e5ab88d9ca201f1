# SPDX-License-Identifier: Apache-2.0
"""Interface of compression methods for flat values, and its implementation for int8, one bit and top-k."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax.numpy as jnp

from horovod.common.compression_methods import CompressionMethod, TopK
from horovod.jax.adapter import JaxArray
from horovod.jax.codecs import codec_for
from horovod.jax.compressing.division import Division
from horovod.jax.compressing.exchange import Exchange, Memory


class Kept(NamedTuple):
    """Arrays that a method keeps: `mine` of this rank, `shared` equal on all ranks."""

    mine: Memory
    shared: Memory


class Way:
    """Base class of methods. It has no state: the kept arrays are passed in and returned."""

    counts_steps: ClassVar[bool] = False  # True if ranks have to agree on the number of the step

    def __init__(self, method: CompressionMethod) -> None:
        self.method = method

    def chooses(self, leaf: JaxArray) -> bool:
        """Return True if the method can compress a gradient of this shape."""
        return True

    def kinds(self) -> dict[str, str]:
        """Return the names of arrays that one rank keeps, with the part whose length each has; see RankState."""
        return {}

    def shared_lengths(self, division: Division, is_dense: bool) -> dict[str, int]:
        """Return the lengths of the kept arrays that are equal on all ranks."""
        return {}

    def first_shared(self, division: Division, is_dense: bool) -> Memory:
        """Return the kept arrays that are equal on all ranks, before the first step; by default zeros."""
        lengths = self.shared_lengths(division, is_dense)
        return {name: jnp.zeros(length, jnp.float32) for name, length in lengths.items()}

    def prepared(self, division: Division, size: int) -> list[JaxArray]:
        """Return this rank's leaves, changed as the method needs before they are sent."""
        return division.leaves

    def after_dense(self, leaves: list[JaxArray], shared: Memory) -> tuple[list[JaxArray], Memory]:
        """Return the dense leaves after their reduction, changed if the method needs it, and arrays to keep."""
        return leaves, {}

    def sum(
        self, exchange: Exchange, values: JaxArray, division: Division, kept: Kept, step: JaxArray
    ) -> tuple[JaxArray, Kept]:
        """Return the sum of flat values over all ranks, and the arrays to keep if the sum is finite."""
        raise NotImplementedError


class CodedWay(Way):
    """Int8, one bit and top-k: a codec compresses this rank's share of the host's sum."""

    def kinds(self) -> dict[str, str]:
        if not self.method.error_feedback:
            return {}
        return {"residual": "share"} | ({} if isinstance(self.method, TopK) else {"server": "chunk"})

    def sum(
        self, exchange: Exchange, values: JaxArray, division: Division, kept: Kept, step: JaxArray
    ) -> tuple[JaxArray, Kept]:
        share = exchange.summed_here(values)
        run = exchange.of_largest if isinstance(self.method, TopK) else exchange.in_two_stages
        total, left = run(share, codec_for(self.method), kept.mine)
        mine = left if self.method.error_feedback else {}
        return exchange.gathered_here(total, values.size), Kept(mine, {})
