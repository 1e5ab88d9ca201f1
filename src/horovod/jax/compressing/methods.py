# SPDX-License-Identifier: Apache-2.0
"""What each method does with the flat values that it compresses: the interface, and int8, one bit and top-k."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import jax.numpy as jnp

from horovod.common.compression_methods import CompressionMethod, TopK
from horovod.jax.adapter import JaxArray
from horovod.jax.codecs import codec_for
from horovod.jax.compressing.division import Division
from horovod.jax.compressing.exchange import Exchange, Memory


class Kept(NamedTuple):
    """What a method keeps: of this rank, and equal on all ranks."""

    mine: Memory
    shared: Memory


class Way:
    """One method. It has no state: what it keeps is passed in and returned."""

    counts_steps: ClassVar[bool] = False  # so that ranks agree on the number of the step

    def __init__(self, method: CompressionMethod) -> None:
        self.method = method

    def chooses(self, leaf: JaxArray) -> bool:
        """Return True if the method can compress a gradient of this shape."""
        return True

    def kinds(self) -> dict[str, str]:
        """Return the names of arrays that one rank keeps, and what their lengths are those of; see RankState."""
        return {}

    def shared_lengths(self, division: Division, is_dense: bool) -> dict[str, int]:
        """Return the lengths of the arrays that all ranks keep alike."""
        return {}

    def first_shared(self, division: Division, is_dense: bool) -> Memory:
        """Return what all ranks keep alike before the first step: zeros."""
        lengths = self.shared_lengths(division, is_dense)
        return {name: jnp.zeros(length, jnp.float32) for name, length in lengths.items()}

    def prepared(self, division: Division, size: int) -> list[JaxArray]:
        """Return this rank's leaves before anything is sent."""
        return division.leaves

    def after_dense(self, leaves: list[JaxArray], shared: Memory) -> tuple[list[JaxArray], Memory]:
        """Return what becomes of dense leaves that are reduced, and what all ranks keep of them."""
        return leaves, {}

    def sum(
        self, exchange: Exchange, values: JaxArray, division: Division, kept: Kept, step: JaxArray
    ) -> tuple[JaxArray, Kept]:
        """Return the sum of flat values over all ranks, and what to keep if it is finite."""
        raise NotImplementedError


class CodedWay(Way):
    """Int8, one bit and top-k: a share of the host's sum is compressed by a codec."""

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
