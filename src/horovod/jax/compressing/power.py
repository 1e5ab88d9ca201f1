# SPDX-License-Identifier: Apache-2.0
"""PowerSGD: allreduces of two small factors of each matrix. Sums are linear, so hosts need no separate stages."""

from __future__ import annotations

from typing import Any

import jax

from horovod.common.compression_methods import PowerSGD
from horovod.jax.adapter import JaxArray, is_traced
from horovod.jax.codecs.low_rank import (
    Factors,
    is_worth_factoring,
    multiplied,
    multiplied_transposed,
    orthonormalised,
    restored,
)
from horovod.jax.compressing.division import Division
from horovod.jax.compressing.exchange import Exchange, Memory
from horovod.jax.compressing.methods import Kept, Way


class PowerWay(Way):
    """PowerSGD: each rank keeps a residual of all its values; the factor Q is equal on all ranks."""

    counts_steps = True

    def __init__(self, method: PowerSGD) -> None:
        super().__init__(method)
        self._power = method

    def chooses(self, leaf: JaxArray) -> bool:
        return is_worth_factoring(leaf.shape, self._power)

    def kinds(self) -> dict[str, str]:
        return {"residual": "values"} if self.method.error_feedback else {}

    def shared_lengths(self, division: Division, is_dense: bool) -> dict[str, int]:
        return {"q": self._factors(division).q_count}

    def first_shared(self, division: Division, is_dense: bool) -> Memory:
        return {"q": self._factors(division).first_q(self._power.seed)}

    def after_dense(self, leaves: list[JaxArray], shared: Memory) -> tuple[list[JaxArray], Memory]:
        return leaves, shared

    def sum(
        self, exchange: Exchange, values: JaxArray, division: Division, kept: Kept, step: JaxArray
    ) -> tuple[JaxArray, Kept]:
        factors = self._factors(division)
        size = exchange.size

        def dense(operands: Any) -> tuple[JaxArray, Memory, JaxArray]:
            flat, mine, q, token = operands
            return exchange.for_branch(token).allreduce(flat, "values"), mine, q

        def compressed(operands: Any) -> tuple[JaxArray, Memory, JaxArray]:
            flat, mine, q, token = operands
            run = exchange.for_branch(token)
            m = flat + mine["residual"] if "residual" in mine else flat
            p = orthonormalised(factors, run.allreduce(multiplied(factors, m, q), "p"))
            q = run.allreduce(multiplied_transposed(factors, m, p), "q")
            total = restored(factors, p, q)
            left = {"residual": m - total / size} if "residual" in mine else {}
            return total, left, q / size

        operands = values, kept.mine, kept.shared["q"], exchange.token()
        starts = step < self._power.start_after
        if not self._power.start_after:
            total, mine, q = compressed(operands)
        elif is_traced([step, values]):
            total, mine, q = jax.lax.cond(starts, dense, compressed, operands)
        else:
            total, mine, q = (dense if bool(starts) else compressed)(operands)
        exchange.wait_for(total)
        return total, Kept(mine, {"q": q})

    def _factors(self, division: Division) -> Factors:
        return Factors.of([division.leaves[number].shape for number in division.chosen], self._power.rank)
