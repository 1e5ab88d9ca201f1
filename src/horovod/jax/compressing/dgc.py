# SPDX-License-Identifier: Apache-2.0
"""Deep Gradient Compression: sends the largest accumulated velocities; the owner of a share accumulates them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from horovod.common.compression_methods import Dgc
from horovod.jax.adapter import JaxArray, is_traced
from horovod.jax.codecs import TopKCodec
from horovod.jax.compressing.division import Division, divided, joined
from horovod.jax.compressing.exchange import Exchange, Memory
from horovod.jax.compressing.methods import Kept, Way


class DgcWay(Way):
    """DGC: the owner of a share has its velocity; the velocity of dense gradients is equal on all ranks."""

    counts_steps = True

    def __init__(self, method: Dgc) -> None:
        super().__init__(method)
        self._dgc = method

    def kinds(self) -> dict[str, str]:
        return {"velocity": "share"} | ({"residual": "share"} if self.method.error_feedback else {})

    def shared_lengths(self, division: Division, is_dense: bool) -> dict[str, int]:
        numbers = range(len(division.leaves)) if is_dense else division.dense
        return {"velocity": sum(it.size for it in _with_momentum([division.leaves[number] for number in numbers]))}

    def prepared(self, division: Division, size: int) -> list[JaxArray]:
        """Clip the norm of this rank's gradients."""
        reals = [it for it in _with_momentum(division.leaves) if it.size]
        if self._dgc.clip is None or not reals:
            return division.leaves
        largest = jnp.stack([jnp.abs(it).max().astype(jnp.float32) for it in reals]).max()
        scale = jnp.where(largest > 0, largest, 1.0)  # so that squares do not overflow
        squares = [jnp.square(it.astype(jnp.float32) / scale).sum() for it in reals]
        norm = jnp.sqrt(jnp.stack(squares).sum()) * scale
        # If the norm is NaN or infinite, the factor turns values that are not finite into NaN.
        factor = jnp.minimum(self._dgc.clip / size**0.5 / norm, 1.0)
        return [it * factor.astype(it.dtype) if _has_momentum(it) else it for it in division.leaves]

    def after_dense(self, leaves: list[JaxArray], shared: Memory) -> tuple[list[JaxArray], Memory]:
        """Turn reduced dense gradients into velocities, because the optimizer has no momentum of its own."""
        reals = _with_momentum(leaves)
        velocity = joined(reals) + self._dgc.momentum * shared["velocity"]
        changed = iter(divided(velocity, reals))
        return [next(changed) if _has_momentum(it) else it for it in leaves], {"velocity": velocity}

    def sum(
        self, exchange: Exchange, values: JaxArray, division: Division, kept: Kept, step: JaxArray
    ) -> tuple[JaxArray, Kept]:
        share = exchange.summed_here(values)
        velocity = share + self._dgc.momentum * kept.mine["velocity"]
        memory = {name: it for name, it in kept.mine.items() if name == "residual"}
        levels = sorted({self._dgc.ratio_at(self._dgc.ramp_steps * n) for n in range(len(self._dgc.ramp) + 1)})[::-1]

        def at(ratio: float) -> Callable[[Any], tuple[JaxArray, JaxArray, JaxArray]]:
            def run(operands: Any) -> tuple[JaxArray, JaxArray, JaxArray]:
                branch = exchange.for_branch(operands[2])
                total, left = branch.of_largest(operands[0], TopKCodec(ratio), operands[1])
                return total, left["residual"], branch.token()

            return run

        operands = velocity, memory, exchange.token()
        number = self._level(step, levels)
        if is_traced([step, velocity]):
            total, left, token = jax.lax.switch(number, [at(ratio) for ratio in levels], operands)
        else:
            total, left, token = at(levels[int(number)])(operands)
        exchange.wait_for(token)
        velocity = jnp.where(left == 0, 0.0, velocity)  # the whole velocity of these values has been sent
        mine = {"velocity": velocity} | ({"residual": left} if self.method.error_feedback else {})
        return exchange.gathered_here(total, values.size), Kept(mine, {})

    def _level(self, step: JaxArray, levels: list[float]) -> JaxArray:
        """Return the index of the ratio for this step in `levels`."""
        numbers = [
            levels.index(self._dgc.ratio_at(self._dgc.ramp_steps * level)) for level in range(len(self._dgc.ramp) + 1)
        ]
        return jnp.asarray(numbers)[jnp.minimum(step // self._dgc.ramp_steps, len(self._dgc.ramp))]


def _has_momentum(leaf: JaxArray) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def _with_momentum(leaves: list[JaxArray]) -> list[JaxArray]:
    return [leaf for leaf in leaves if _has_momentum(leaf)]
