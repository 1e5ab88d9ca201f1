# SPDX-License-Identifier: Apache-2.0
"""Loops over a number of parts that may be known only when a graph runs. Small known numbers are unrolled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

Tensor: TypeAlias = Any  # tf.Tensor

_MAX_UNROLLED = 16


def concatenated(
    count: Tensor, dtypes: Sequence[tf.DType], parts: Callable[[Tensor], Sequence[Tensor]]
) -> list[Tensor]:
    """Return one flat tensor for each dtype: the concatenation of what `parts` returns for 0, 1, … count - 1."""
    if (fixed := _unrolled(count)) is not None:
        return [tf.concat(column, 0) for column in zip(*map(parts, range(fixed)), strict=True)]

    def add(number: Tensor, arrays: tuple[Any, ...]) -> tuple[Tensor, tuple[Any, ...]]:
        return number + 1, tuple(one.write(number, part) for one, part in zip(arrays, parts(number), strict=True))

    arrays = tuple(tf.TensorArray(dtype, size=count, element_shape=[None], infer_shape=False) for dtype in dtypes)
    _, arrays = tf.while_loop(lambda number, _: number < count, add, (tf.constant(0), arrays), parallel_iterations=1)
    return [one.concat() for one in arrays]


def summed(count: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the sum of the flat tensors that `part` returns for 0, 1, … count - 1, added in this order."""
    if (fixed := _unrolled(count)) is not None:
        parts = map(part, range(fixed))
        return functools.reduce(lambda total, one: total + one, parts)

    def add(number: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        return number + 1, total + part(number)

    start = (tf.constant(1), part(tf.constant(0)))
    shapes = (tf.TensorShape([]), tf.TensorShape([None]))
    _, total = tf.while_loop(
        lambda number, _: number < count, add, start, shape_invariants=shapes, parallel_iterations=1
    )
    return total


def _unrolled(count: Tensor) -> int | None:
    """Return the number of parts if it is known and small, else None."""
    value = tf.get_static_value(count)
    return int(value) if value is not None and 1 <= value <= _MAX_UNROLLED else None
