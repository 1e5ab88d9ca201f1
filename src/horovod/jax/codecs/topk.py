# SPDX-License-Identifier: Apache-2.0
"""Top-k codec in JAX operations: int32 indices of the largest values, then these values as float32."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from horovod.jax.adapter import JaxArray
from horovod.jax.codecs.byte_views import as_bytes, as_dtype

_PAIR = 8  # bytes of an index and a value
_SAMPLE_AT_LEAST = 1024
_SAMPLE_EVERY = 100
_MAX_INDEX = 2**31 - 1


@dataclass(frozen=True)
class TopKCodec:
    """Codec for messages of 1.25 * ratio * count pairs of index and value, padded with pairs (0, 0.0)."""

    ratio: float

    def wanted(self, count: int) -> int:
        """Return k, the number of values that a message has on average."""
        return max(1, round(self.ratio * count))

    def most(self, count: int) -> int:
        """Return the number of pairs in a message, padding included."""
        return min(count, -(-5 * self.wanted(count) // 4))

    def wire_bytes(self, count: int) -> int:
        """Return the length of a message."""
        return _PAIR * self.most(count)

    def encode(self, p: JaxArray) -> tuple[JaxArray, JaxArray]:
        """Return the message for `p`, and what it lacks of `p`."""
        count = p.size
        if count > _MAX_INDEX:
            raise ValueError(f"there are {count} values, but top-k indices reach {_MAX_INDEX}: use exclude=")
        most = self.most(count)
        magnitudes = jnp.abs(p)
        is_finite = jnp.isfinite(p).all()
        # Exclude zeros, because sending one changes no sum.
        reaches = (magnitudes >= self._threshold(magnitudes)) & (magnitudes > 0) & is_finite
        (indices,) = jax.lax.cond(
            reaches.sum() > most,
            lambda: (jnp.sort(jax.lax.top_k(jnp.where(reaches, magnitudes, -1.0), most)[1]).astype(jnp.int32),),
            lambda: (jnp.nonzero(reaches, size=most, fill_value=count)[0].astype(jnp.int32),),
        )
        is_padding = indices == count
        values = jnp.where(is_padding, 0.0, p[jnp.minimum(indices, count - 1)])
        left = p.at[indices].set(0.0, mode="drop")
        # If not all values are finite, no value was chosen. A NaN in the message reports this.
        values = jnp.where(is_finite, values, values.at[0].set(jnp.nan))
        wire = [as_bytes(jnp.where(is_padding, 0, indices)), as_bytes(values)]
        return jnp.concatenate(wire), left

    def decode(self, wire: JaxArray, count: int) -> JaxArray:
        """Return the values of a message, and zero for the rest."""
        half = wire.size // 2
        values = as_dtype(wire[half:], jnp.float32)
        return jnp.zeros(count, jnp.float32).at[as_dtype(wire[:half], jnp.int32)].add(values)

    def _threshold(self, magnitudes: JaxArray) -> JaxArray:
        """Estimate the k-th largest magnitude from a sample."""
        count = magnitudes.size
        sample = magnitudes[_positions(count)] if count > _SAMPLE_AT_LEAST else magnitudes
        size = sample.size
        number = min(size, max(1, (2 * self.wanted(count) * size + count) // (2 * count)))
        return jax.lax.top_k(sample, number)[0][-1]


def _positions(count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Return ascending positions for a sample: the values are divided into ranges, and a fixed hash picks one in each.

    Positions at equal distances would hit the same few columns of a matrix in each row.
    """
    size = max(_SAMPLE_AT_LEAST, count // _SAMPLE_EVERY)
    width = count // size
    numbers = np.arange(size, dtype=np.int64)
    hashed = (numbers * 2654435761) & 0xFFFFFFFF
    return (numbers * count // size + ((hashed * width) >> 32)).astype(np.int32)
