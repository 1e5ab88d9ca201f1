# SPDX-License-Identifier: Apache-2.0
"""Int8 codec in JAX operations: a float32 scale for each block of values, then one int8 for each value."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from horovod.jax.adapter import JaxArray
from horovod.jax.codecs.byte_views import as_bytes, as_dtype

_STEPS = 127  # quantisation steps between 0 and the largest magnitude


@dataclass(frozen=True)
class Int8Codec:
    """Codec for messages of ceil(count / block) scales and count values."""

    block: int

    def wire_bytes(self, count: int) -> int:
        """Return the length of a message."""
        return 4 * -(-count // self.block) + count

    def encode(self, p: JaxArray) -> tuple[JaxArray, JaxArray]:
        """Return the message for `p`, and what it lacks of `p`."""
        count = p.size
        # Pad with zeros, which change neither the scale of the last block nor the message.
        blocks = jnp.pad(p, (0, -count % self.block)).reshape(-1, self.block)
        scale, quantum = _quantise(blocks)
        left = (blocks - quantum * scale).reshape(-1)[:count]
        wire = [as_bytes(scale.reshape(-1)), as_bytes(quantum.astype(jnp.int8).reshape(-1)[:count])]
        return jnp.concatenate(wire), left

    def decode(self, wire: JaxArray, count: int) -> JaxArray:
        """Return the values of a message."""
        scales = 4 * -(-count // self.block)
        quanta = jnp.pad(as_dtype(wire[scales:], jnp.int8), (0, -count % self.block)).reshape(-1, self.block)
        values = quanta.astype(jnp.float32) * as_dtype(wire[:scales], jnp.float32)[:, None]
        return values.reshape(-1)[:count]


def _quantise(values: JaxArray) -> tuple[JaxArray, JaxArray]:
    """Return the scale of each block (a row) and each value as a whole number of scales, in float32."""
    largest = jnp.abs(values).max(axis=1, keepdims=True)
    is_bad = ~jnp.isfinite(values).all(axis=1, keepdims=True)
    # The barrier keeps XLA from turning the division by a constant into a multiplication, which rounds differently.
    steps = jax.lax.optimization_barrier(jnp.float32(_STEPS))
    inverse = steps / largest
    is_zero = jnp.isinf(inverse)  # True if the block is zero, or too small for a scale
    scale = jnp.where(is_bad, jnp.nan, jnp.where(is_zero, 0.0, largest / steps))
    quantum = jnp.clip(jnp.round(values * inverse), -_STEPS, _STEPS)
    return scale, jnp.where(is_zero | is_bad, 0.0, quantum)
