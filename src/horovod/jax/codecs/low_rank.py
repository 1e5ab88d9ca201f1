# SPDX-License-Identifier: Apache-2.0
"""Algebra of PowerSGD: which gradients are factored as matrices, and the factors of all matrices in flat arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from horovod.common.compression_methods import PowerSGD
from horovod.jax.adapter import JaxArray

_SMALLEST = 1e-30  # lower limit of the divisor that scales matrices to 1, because squares of small values underflow


@dataclass(frozen=True)
class Factors:
    """Matrices of a division, each given by its rows, its columns and the rank of its factors."""

    matrices: tuple[tuple[int, int, int], ...]

    @staticmethod
    def of(shapes: Sequence[Sequence[int]], rank: int) -> Factors:
        """Return the factors of gradients with these shapes, which are folded to matrices."""
        folded = [(shape[0], math.prod(shape[1:])) for shape in shapes]
        return Factors(tuple((rows, columns, min(rank, rows, columns)) for rows, columns in folded))

    @property
    def p_count(self) -> int:
        """Number of values in all P."""
        return sum(rows * rank for rows, _, rank in self.matrices)

    @property
    def q_count(self) -> int:
        """Number of values in all Q."""
        return sum(columns * rank for _, columns, rank in self.matrices)

    def first_q(self, seed: int) -> JaxArray:
        """Return the first Q of all matrices, equal on all ranks."""
        return jnp.asarray(np.random.default_rng(seed).uniform(-1, 1, self.q_count).astype(np.float32))

    def _cut(self, flat: JaxArray, sizes: Sequence[tuple[int, int]]) -> list[JaxArray]:
        ends = np.cumsum([0] + [rows * columns for rows, columns in sizes])
        return [flat[ends[i] : ends[i + 1]].reshape(size) for i, size in enumerate(sizes)]

    def of_values(self, flat: JaxArray) -> list[JaxArray]:
        """Return each matrix in a flat array."""
        return self._cut(flat, [(rows, columns) for rows, columns, _ in self.matrices])

    def of_p(self, flat: JaxArray) -> list[JaxArray]:
        """Return each P in a flat array."""
        return self._cut(flat, [(rows, rank) for rows, _, rank in self.matrices])

    def of_q(self, flat: JaxArray) -> list[JaxArray]:
        """Return each Q in a flat array."""
        return self._cut(flat, [(columns, rank) for _, columns, rank in self.matrices])


@functools.partial(jax.jit, static_argnums=0)
def multiplied(factors: Factors, flat: JaxArray, q: JaxArray) -> JaxArray:
    """Return P = M Q of all matrices M."""
    pairs = zip(factors.of_values(flat), factors.of_q(q), strict=True)
    return jnp.concatenate([_product(m, right).reshape(-1) for m, right in pairs])


@functools.partial(jax.jit, static_argnums=0)
def multiplied_transposed(factors: Factors, flat: JaxArray, p: JaxArray) -> JaxArray:
    """Return Q = M^T P of all matrices M."""
    pairs = zip(factors.of_values(flat), factors.of_p(p), strict=True)
    return jnp.concatenate([_product(m.T, left).reshape(-1) for m, left in pairs])


@functools.partial(jax.jit, static_argnums=0)
def restored(factors: Factors, p: JaxArray, q: JaxArray) -> JaxArray:
    """Return M' = P Q^T of all matrices."""
    pairs = zip(factors.of_p(p), factors.of_q(q), strict=True)
    return jnp.concatenate([_product(left, right.T).reshape(-1) for left, right in pairs])


@functools.partial(jax.jit, static_argnums=0)
def orthonormalised(factors: Factors, p: JaxArray) -> JaxArray:
    """Return an orthonormal basis of the columns of each P.

    QR by reflections completes the basis if columns depend on each other or are zero. Gram-Schmidt would leave zeros,
    from which the next step could not recover.
    """
    return jnp.concatenate([_basis(it).reshape(-1) for it in factors.of_p(p)])


def _basis(p: JaxArray) -> JaxArray:
    largest = jnp.maximum(jnp.abs(p).max(), _SMALLEST)
    basis: JaxArray = jnp.linalg.qr(p / largest)[0]
    return jnp.where(jnp.isfinite(p).all(), basis, jnp.nan)


def _product(left: JaxArray, right: JaxArray) -> JaxArray:
    return jnp.matmul(left, right, precision=jax.lax.Precision.HIGHEST)


def is_worth_factoring(shape: Sequence[int], method: PowerSGD) -> bool:
    """Return True if a gradient folds to a matrix whose factors are smaller by the method's minimum rate."""
    if len(shape) < 2 or not math.prod(shape):
        return False
    rows, columns = shape[0], math.prod(shape[1:])
    return rows * columns >= method.min_rate * method.rank * (rows + columns)
