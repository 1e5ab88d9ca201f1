# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of the JAX API: 64-bit types, two ways to run a function, and comparison of dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import horovod.jax as hvd  # imported before JAX's backend starts

import jax  # isort: skip
import jax.numpy as jnp  # isort: skip
import numpy as np

from harness.arrays import Array, check_equal

jax.config.update("jax_enable_x64", True)

MODES = ("eager", "jit")


def run(mode: str, function: Callable[..., Any], *arguments: Any) -> Any:
    return (jax.jit(function) if mode == "jit" else function)(*arguments)


def check_all(results: Mapping[str, Any], expected: Mapping[str, Array]) -> str:
    """Compare every result with NumPy's; return digests of the bits, for the comparison between ranks."""
    assert results.keys() == expected.keys()
    digests = []
    for name, value in results.items():
        assert isinstance(value, jax.Array), name
        try:
            digests.append(check_equal(np.asarray(value), expected[name]))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
    return " ".join(digests)


__all__ = ["MODES", "check_all", "hvd", "jax", "jnp", "np", "run"]
