# SPDX-License-Identifier: Apache-2.0
"""One-bit codec in JAX operations: the mean magnitude of each block of 4,096 values, then a sign bit per value."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from horovod.common.compression_methods import ONE_BIT_BLOCK
from horovod.jax.adapter import JaxArray
from horovod.jax.codecs.byte_views import as_bytes, as_dtype


@dataclass(frozen=True)
class OneBitCodec:
    """Codec for messages of ceil(count / 4096) means and ceil(count / 8) bytes of signs."""

    def wire_bytes(self, count: int) -> int:
        """Return the length of a message."""
        return 4 * -(-count // ONE_BIT_BLOCK) + -(-count // 8)

    def encode(self, p: JaxArray) -> tuple[JaxArray, JaxArray]:
        """Return the message for `p`, and what it lacks of `p`."""
        means = _means(p)
        is_negative = p < 0
        left = p - _signed(means, is_negative)
        signs = jnp.packbits(is_negative, bitorder="little")
        return jnp.concatenate([as_bytes(means), signs]), left

    def decode(self, wire: JaxArray, count: int) -> JaxArray:
        """Return the values of a message."""
        means = 4 * -(-count // ONE_BIT_BLOCK)
        is_negative = jnp.unpackbits(wire[means:], bitorder="little")[:count] != 0
        return _signed(as_dtype(wire[:means], jnp.float32), is_negative)


def _means(p: JaxArray) -> JaxArray:
    count = p.size
    blocks = jnp.abs(jnp.pad(p, (0, -count % ONE_BIT_BLOCK))).reshape(-1, ONE_BIT_BLOCK)
    lengths = np.full(len(blocks), ONE_BIT_BLOCK, np.float32)
    lengths[-1] -= -count % ONE_BIT_BLOCK
    means = blocks.sum(axis=1) / lengths
    return jnp.where(jnp.isfinite(means), means, jnp.nan)


def _signed(means: JaxArray, is_negative: JaxArray) -> JaxArray:
    """Return the mean of each value's block, negative where the value is negative."""
    each = jnp.broadcast_to(means[:, None], (means.size, ONE_BIT_BLOCK)).reshape(-1)[: is_negative.size]
    return jnp.where(is_negative, -each, each)
