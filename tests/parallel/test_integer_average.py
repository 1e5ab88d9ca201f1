# SPDX-License-Identifier: Apache-2.0
"""Averages of integers under 64 bits: the exact quotient, truncated toward zero, even if the sum would overflow."""

import numpy as np
import pytest
from harness.arrays import (
    AVERAGES_OF_TWO,
    averages_of_two,
    check_equal,
    check_reduced,
    inputs,
    mine,
    reduced,
    reduced_by_layout,
)
from harness.worlds import ROUNDING, SEVERAL, on_all_ranks

import horovod.numpy as hvd

exact_quotient = pytest.mark.checked_numbers(
    "averages of integers under 64 bits whose sums overflow", against="the exact quotient"
)
# Around the boundaries of a 1024-byte chunk, for elements of one, two and four bytes; and a count of several chunks.
COUNTS = (1, 16, 255, 256, 257, 512, 1023, 1024, 1025, 5000)


@exact_quotient
@pytest.mark.parametrize("dtype", AVERAGES_OF_TWO)
@on_all_ranks("shm2", "tcp2", ROUNDING[0])
def test_the_average_of_two_ranks_is_exact(dtype):
    for rows in (1, 50, 3000):
        own, expected = averages_of_two(dtype, hvd.rank(), rows)
        check_equal(hvd.allreduce(own), expected)
        for result in hvd.grouped_allreduce([own, own]):
            check_equal(result, expected)
        check_equal(hvd.reducescatter(own), np.array_split(expected, 2)[hvd.rank()])
        for result in hvd.grouped_reducescatter([own, own]):
            check_equal(result, np.array_split(expected, 2)[hvd.rank()])
        check_equal(own, averages_of_two(dtype, hvd.rank(), rows)[0])  # the input is unchanged
        hvd.allreduce_(own)
        check_equal(own, expected)


def extremes(dtype, count):
    """Return each rank's array. An element is the maximum or the minimum on all ranks, one of both, or random."""
    limits, random = np.iinfo(dtype), np.random.default_rng(count)
    kinds = random.integers(0, 4, count)
    arrays = []
    for rank in range(hvd.size()):
        own = np.random.default_rng([count, rank])
        either = np.where(own.integers(0, 2, count) == 1, limits.max, limits.min)
        anything = own.integers(limits.min, limits.max, count, np.int64, endpoint=True)
        arrays.append(np.choose(kinds, [np.full(count, limits.max), np.full(count, limits.min), either, anything]))
    return [array.astype(dtype) for array in arrays]


@exact_quotient
@pytest.mark.parametrize("dtype", AVERAGES_OF_TWO)
@on_all_ranks(*SEVERAL)
def test_extremes_of_every_size(dtype):
    digests = []
    for count in COUNTS:
        arrays = extremes(dtype, count)
        own, in_place, expected = mine(arrays), mine(arrays), reduced(arrays, "Average")
        handle = hvd.allreduce_async_(in_place)
        digests.append(check_equal(hvd.allreduce(own), expected))
        check_equal(hvd.synchronize(handle), expected)
        check_equal(hvd.reducescatter(own), np.array_split(expected, hvd.size())[hvd.rank()])
    return digests


@exact_quotient
@on_all_ranks(*SEVERAL)
def test_a_group_with_other_types():
    integers = [extremes(dtype, count) for dtype in AVERAGES_OF_TWO for count in (900, 901)]
    floats = [inputs((count,), "float32") for count in (900, 901)]
    integers.append([array.astype(np.int64) for array in integers[0]])
    given = [array for pair in zip(integers, floats * len(integers), strict=False) for array in pair]
    digests = []
    for arrays, result in zip(given, hvd.grouped_allreduce([mine(arrays) for arrays in given]), strict=True):
        digests.append(check_reduced(result, arrays, "Average"))
    for arrays, result in zip(given, hvd.grouped_reducescatter([mine(arrays) for arrays in given]), strict=True):
        check_equal(result, np.array_split(reduced_by_layout(arrays, "Average"), hvd.size())[hvd.rank()])
    return digests


@exact_quotient
@pytest.mark.parametrize("dtype", AVERAGES_OF_TWO)
@on_all_ranks("shm2", "shm4")
def test_arrays_in_shared_memory(dtype):
    arrays = extremes(dtype, 5000)
    shared = hvd.shared_zeros(5000, dtype)
    shared[:] = mine(arrays)
    hvd.allreduce_(shared)
    return check_equal(shared, reduced(arrays, "Average"))


@exact_quotient
@pytest.mark.parametrize("dtype", AVERAGES_OF_TWO)
@on_all_ranks("shm2", "hosts4")
def test_factors_scale_the_exact_average(dtype):
    """The factors are one half before the sum and two after it, as gradient_predivide_factor uses them."""
    digests = []
    for count in (16, 5000):
        arrays = extremes(dtype, count)
        result = hvd.allreduce(mine(arrays), prescale_factor=0.5, postscale_factor=2.0)
        digests.append(check_equal(result, reduced(arrays, "Average", 0.5, 2.0)))
    return digests
