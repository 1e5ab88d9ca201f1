# SPDX-License-Identifier: Apache-2.0
"""Views of parts of messages, which are arrays of uint8, as arrays of other dtypes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from horovod.jax.adapter import JaxArray


def as_bytes(values: JaxArray) -> JaxArray:
    """Return the bytes of an array in their order in memory, flat."""
    return jax.lax.bitcast_convert_type(values, jnp.uint8).reshape(-1)


def as_dtype(part: JaxArray, dtype: Any) -> JaxArray:
    """Return bytes of a message as a flat array of another dtype."""
    size = jnp.dtype(dtype).itemsize
    return jax.lax.bitcast_convert_type(part.reshape(-1, size) if size > 1 else part, dtype)
