# SPDX-License-Identifier: Apache-2.0
"""Arrays for tests: every rank knows every rank's input, and NumPy computes the expected result of a reduction."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import horovod.numpy as hvd

Array = npt.NDArray[Any]

SIGNED = ("int8", "int16", "int32", "int64")
INTEGERS = ("uint8", "uint16", "uint32", "uint64", *SIGNED)
HALVES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
FLOATS = (*HALVES, "float32", "float64")
DTYPES = (*INTEGERS, *FLOATS, "bool")
OPS = {"Average": hvd.Average, "Sum": hvd.Sum, "Min": hvd.Min, "Max": hvd.Max, "Product": hvd.Product}

# No element, one, sizes that no vector length or number of ranks divides, several chunks of
# harness.worlds.SMALL_CHUNKS.
SHAPES: tuple[tuple[int, ...], ...] = ((0,), (), (17,), (3, 0, 2), (5, 3, 7), (1237,))


def odd_one_out() -> bool:
    """Return True on the rank that differs from the others in a test: the last rank."""
    return hvd.rank() == hvd.size() - 1


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


def inputs(shape: Sequence[int], dtype: str, seed: object = 0, size: int | None = None) -> list[Array]:
    """Return the input of each rank.

    Integers fill their range (64 bits: up to 2**50, so that sums are exact in a double).
    """
    return [_values(tuple(shape), dtype, f"{seed} {rank}") for rank in range(hvd.size() if size is None else size)]


def _values(shape: tuple[int, ...], dtype: str, seed: str) -> Array:
    random = np.random.default_rng(zlib.crc32(seed.encode()))
    kind = dtype_of(dtype)
    if dtype == "bool":
        return np.asarray(random.random(shape) < 0.5)
    if dtype in INTEGERS:
        limits = np.iinfo(kind)
        low, high = max(limits.min, -(1 << 50)), min(limits.max, 1 << 50)
        return np.asarray(random.integers(low, high, shape, endpoint=True, dtype=kind))
    # Bounded, so that products of four values stay finite even in eight bits.
    return np.asarray(random.uniform(-4, 4, shape)).astype(kind)


def mine(arrays: Sequence[Array]) -> Array:
    """Return a copy of this rank's array."""
    return arrays[hvd.rank()].copy()


def reduced(arrays: Sequence[Array], op: str, prescale: float = 1, postscale: float = 1) -> Array:
    """Return the reduction in rank order: postscale · R(prescale · x)."""
    dtype = arrays[0].dtype
    # Averages of integers below 64 bits are summed in 64 bits, so that the sum does not overflow.
    widened = op == "Average" and dtype.kind in "iu" and dtype.itemsize < 8
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = [scale(array, prescale) for array in arrays]
        parts = [array.astype(np.int64) if widened else accumulator(array) for array in scaled]
        total = parts[0]
        for array in parts[1:]:
            total = _combine(op, total, array)
        if op == "Average" and dtype.kind in "iu" and postscale == 1:
            total = _divide(total, len(arrays))
        elif op == "Average":
            postscale = postscale / len(arrays)
        return rounded(total, postscale, dtype)


# Elements of two ranks and their exact average, truncated toward zero. Most of the sums overflow.
AVERAGES_OF_TWO = {
    "uint8": ((200, 200, 200), (255, 254, 254), (1, 0, 0)),
    "int8": ((100, 100, 100), (-100, -101, -100), (-128, -128, -128), (-1, 0, 0)),
    "uint16": ((65535, 65534, 65534), (40000, 40000, 40000)),
    "int16": ((30000, 30001, 30000), (-30000, -30001, -30000)),
    "uint32": ((4294967295, 4294967295, 4294967295), (4294967295, 2, 2147483648)),
    "int32": ((2000000000, 2000000000, 2000000000), (-2000000000, -2000000001, -2000000000), (-3, 0, -1)),
}


def averages_of_two(dtype: str, rank: int, rows: int = 50) -> tuple[Array, Array]:
    """Return this rank's elements of AVERAGES_OF_TWO, repeated in `rows` rows, and the averages."""
    cases = np.array(AVERAGES_OF_TWO[dtype], np.int64)
    return np.tile(cases[:, rank], (rows, 1)).astype(dtype), np.tile(cases[:, 2], (rows, 1)).astype(dtype)


def _combine(op: str, left: Array, right: Array) -> Array:
    if op in ("Sum", "Average"):
        return left | right if left.dtype == bool else left + right
    if op == "Product":
        return left & right if left.dtype == bool else left * right
    return np.minimum(left, right) if op == "Min" else np.maximum(left, right)


def _divide(total: Array, count: int) -> Array:
    """Divide integers with truncation toward zero."""
    quotient = np.abs(total.astype(object)) // count
    return np.asarray(np.where(total < 0, -quotient, quotient)).astype(total.dtype)


def accumulator(array: Array) -> Array:
    """Return the array in the dtype in which a reduction adds: float32 for half types, else the array's own."""
    narrow = array.dtype.itemsize < 4 and array.dtype.name in HALVES
    return array.astype(np.float32) if narrow else array


def scale(array: Array, factor: float) -> Array:
    return array if factor == 1 else rounded(accumulator(array), factor, array.dtype)


def rounded(total: Array, factor: float, dtype: np.dtype[Any]) -> Array:
    """Apply a factor and convert to the dtype: floats are multiplied in their own precision, integers as doubles."""
    if factor == 1:
        return np.asarray(total).astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        product = np.trunc(total.astype(np.float64) * factor)
        return np.clip(product, float(limits.min), float(limits.max)).astype(dtype)
    return np.asarray(total * total.dtype.type(factor)).astype(dtype)


def check_equal(result: Array, expected: Array) -> str:
    """Compare dtype, shape and values; return a digest of the bits, for the comparison between ranks."""
    assert result.dtype == expected.dtype, f"{result.dtype} instead of {expected.dtype}"
    assert result.shape == expected.shape, f"shape {result.shape} instead of {expected.shape}"
    np.testing.assert_array_equal(comparable(result), comparable(expected))
    return digest(result)


def reduced_by_hosts(arrays: Sequence[Array], op: str, prescale: float = 1, postscale: float = 1) -> Array:
    """Return the reduction of each host's reduction, where hosts have equally many consecutive ranks."""
    if op == "Average":
        op, postscale = "Sum", postscale / len(arrays)
    starts = range(0, len(arrays), hvd.local_size())
    partial = [reduced(arrays[start : start + hvd.local_size()], op, prescale) for start in starts]
    return reduced(partial, op, 1, postscale)


def reduced_by_layout(arrays: Sequence[Array], op: str, prescale: float = 1, postscale: float = 1) -> Array:
    """Return the sum in the order of a reducescatter: by hosts if several hosts have several ranks each."""
    hosts = hvd.cross_size() > 1 and hvd.local_size() > 1 and hvd.is_homogeneous()
    by_hosts = hosts and arrays[0].dtype.name in FLOATS
    return (reduced_by_hosts if by_hosts else reduced)(arrays, op, prescale, postscale)


def check_reduced(result: Array, arrays: Sequence[Array], op: str, prescale: float = 1, postscale: float = 1) -> str:
    """Check a reduction's exact result, summed in rank order or, with several hosts, by hosts."""
    expected = reduced(arrays, op, prescale, postscale)
    hosts = hvd.cross_size() > 1 and hvd.local_size() > 1 and hvd.is_homogeneous()
    if hosts and expected.dtype.name in FLOATS and digest(result) != digest(expected):
        expected = reduced_by_hosts(arrays, op, prescale, postscale)
    return check_equal(result, expected)


def comparable(array: Array) -> Array:
    """Return an array of a type that NumPy lacks as float32; return other arrays unchanged."""
    return array.astype(np.float32) if array.dtype.name in HALVES else array


def digest(array: Array) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]
