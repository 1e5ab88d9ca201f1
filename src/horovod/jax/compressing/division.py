# SPDX-License-Identifier: Apache-2.0
"""Division of a tree of gradients into leaves that a method compresses and leaves that stay dense."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from horovod.common.compression_methods import CompressionMethod
from horovod.common.group_contents import GradientOf, described
from horovod.common.supported_methods import first_of, unmatched
from horovod.jax.adapter import JaxArray, Tree

_COMPRESSED_DTYPES = ("float16", "bfloat16", "float32", "float64")


class Division:
    """The leaves of a tree, in order, and which of them are compressed.

    Attributes:
            names: Names of the leaves: their paths in the tree, with dots between the parts.
        leaves: The leaves.
        chosen: Numbers of the leaves that are compressed.
            dense: Numbers of the other leaves. Integers and complex numbers are always dense.
    """

    def __init__(
        self, tree: Tree, method: CompressionMethod, fits: Callable[[JaxArray], bool] = lambda _: True
    ) -> None:
        """Divide a tree; `fits` returns True if the method can compress a leaf of this shape."""
        found, self._structure = jax.tree_util.tree_flatten_with_path(tree)
        self.names = [".".join(map(_word, path)) for path, _ in found]
        self.leaves: list[JaxArray] = [leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf) for _, leaf in found]
        self.chosen = [
            number
            for number, (name, leaf) in enumerate(zip(self.names, self.leaves, strict=True))
            if str(leaf.dtype) in _COMPRESSED_DTYPES
            and method.compresses(name, leaf.size * leaf.dtype.itemsize)
            and fits(leaf)
        ]
        self.dense = [number for number in range(len(self.leaves)) if number not in set(self.chosen)]
        self.count = sum(self.leaves[number].size for number in self.chosen)

    def check_exclude(self, method: CompressionMethod) -> None:
        """Raise ValueError if a pattern of `exclude` matches no name."""
        for problem in unmatched(method, self.names, "parameter"):
            raise ValueError(f"{problem}; names are {first_of(self.names)}")

    def contents(self, more: str) -> str:
        """Return a description of what all ranks must agree on, with a checksum at the end."""
        gradients = [
            GradientOf(name, f"{tuple(leaf.shape)} {leaf.dtype}")
            for name, leaf in zip(self.names, self.leaves, strict=True)
        ]
        return described(gradients, part=more) if gradients else ""

    def whole(self, leaves: Sequence[JaxArray]) -> Tree:
        """Return the tree with all leaves replaced."""
        return self._structure.unflatten(leaves)

    def restored(self, chosen: Sequence[JaxArray], dense: Sequence[JaxArray]) -> Tree:
        """Return the tree with the compressed and the dense leaves replaced."""
        leaves: list[Any] = list(self.leaves)
        for number, leaf in [*zip(self.chosen, chosen, strict=True), *zip(self.dense, dense, strict=True)]:
            leaves[number] = leaf
        return self._structure.unflatten(leaves)


def _word(key: Any) -> str:
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def joined(arrays: Sequence[JaxArray]) -> JaxArray:
    """Return the values of arrays as one flat array of float32."""
    return jnp.concatenate([jnp.zeros(0, jnp.float32), *(it.reshape(-1).astype(jnp.float32) for it in arrays)])


def divided(flat: JaxArray, likes: Sequence[JaxArray]) -> list[JaxArray]:
    """Return consecutive parts of a flat array in the shapes and dtypes of other arrays."""
    ends = np.cumsum([0] + [it.size for it in likes])
    return [
        flat[start:end].reshape(it.shape).astype(it.dtype)
        for start, end, it in zip(ends[:-1], ends[1:], likes, strict=True)
    ]


def are_finite(arrays: Sequence[JaxArray]) -> JaxArray:
    """Return an array that is True if no array has a NaN or an infinity."""
    flags = [jnp.isfinite(it).all() for it in arrays if jnp.issubdtype(it.dtype, jnp.inexact)]
    return functools.reduce(jnp.logical_and, flags, jnp.bool_(True))
