# SPDX-License-Identifier: Apache-2.0
"""PowerSGD: each matrix of gradients travels as two thin factors, all first factors together, then all second ones.

The method only needs sums of factors, so the exchange is an ordinary allreduce, and only factors travel between hosts.
Therefore each rank keeps the residual of its own gradients, whatever the method's scope is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from horovod.common.compression_methods import PowerSGD
from horovod.common.rules import Average
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.compressing.exchange import Wire

Tensor: TypeAlias = Any  # tf.Tensor

_SMALLEST = 1e-30  # lower limit for scaling a matrix to 1, which keeps squares of small values from underflowing


class Matrix(NamedTuple):
    """Shape of a gradient that is folded to a matrix. In TensorFlow's kernels the last dimension holds the outputs."""

    rows: int
    columns: int
    rank: int


def matrix_of(shape: Sequence[int], method: PowerSGD) -> Matrix | None:
    """Return the matrix that a gradient is folded to, or None if its factors would not be small enough."""
    if len(shape) < 2 or not math.prod(shape):
        return None
    rows, columns = math.prod(shape[:-1]), shape[-1]
    if rows * columns < method.min_rate * method.rank * (rows + columns):
        return None
    return Matrix(rows, columns, min(method.rank, rows, columns))


def first_q(matrices: Sequence[Matrix], seed: int) -> npt.NDArray[np.float32]:
    """Return the initial Q of all matrices, equal on all ranks."""
    count = sum(it.columns * it.rank for it in matrices)
    return np.random.default_rng(seed).uniform(-1.0, 1.0, count).astype(np.float32)


def by_factors(flat: Tensor, matrices: Sequence[Matrix], q: Tensor, wire: Wire) -> tuple[Tensor, Tensor, Tensor]:
    """Return the low-rank mean of a flat tensor over all ranks, this rank's difference from it, and the next Q."""
    values = [
        tf.reshape(part, [it.rows, it.columns])
        for it, part in zip(matrices, tf.split(flat, [it.rows * it.columns for it in matrices]), strict=True)
    ]
    q_parts = _divided(q, [(it.columns, it.rank) for it in matrices])
    p = _mean([tf.matmul(one, right) for one, right in zip(values, q_parts, strict=True)], wire, "p")
    p_parts = [_orthonormalised(one) for one in _divided(p, [(it.rows, it.rank) for it in matrices])]
    q = _mean([tf.matmul(one, left, transpose_a=True) for one, left in zip(values, p_parts, strict=True)], wire, "q")
    q_parts = _divided(q, [(it.columns, it.rank) for it in matrices])
    found = [tf.matmul(left, right, transpose_b=True) for left, right in zip(p_parts, q_parts, strict=True)]
    result = _joined(found)
    return result, flat - result, q


def _mean(factors: Sequence[Tensor], wire: Wire, stage: str) -> Tensor:
    return mpi_ops._allreduce(_joined(factors), name=wire.stage(stage), op=Average, process_set=wire.process_set)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tf.concat([tf.reshape(it, [-1]) for it in tensors], 0)


def _divided(flat: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    parts = tf.split(flat, [rows * columns for rows, columns in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def _orthonormalised(matrix: Tensor) -> Tensor:
    """Return an orthonormal basis of the columns' span, completed if columns are linearly dependent or zero."""
    largest = tf.maximum(tf.reduce_max(tf.abs(matrix)), _SMALLEST)
    scaled = matrix / largest
    is_finite = tf.reduce_all(tf.math.is_finite(scaled))
    # Keep NaN out of the decomposition, because it might not return NaN for it.
    basis = tf.linalg.qr(tf.where(is_finite, scaled, tf.zeros_like(scaled)))[0]
    return tf.where(is_finite, basis, np.float32(np.nan))
