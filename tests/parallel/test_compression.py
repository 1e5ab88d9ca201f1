# SPDX-License-Identifier: Apache-2.0
"""Horovod's own compressors, which the engine applies during transfer, against NumPy's conversions, bit for bit.

Between ranks of one host the engine sends float32 unrounded, unless results must not depend on the layout of hosts.
"""

import ml_dtypes
import numpy as np
import pytest
from harness.arrays import check_equal, inputs, mine
from harness.sets import process_sets
from harness.worlds import DETERMINISTIC, ROUNDING, World, on_all_ranks

import horovod.numpy as hvd


class HalfByHand(hvd.Compression.fp16):
    """Compressor of a user, derived from Horovod's: it converts in Python, not in the engine."""


class BFloatByHand(hvd.Compression.bf16):
    pass


WAYS = {"fp16": (hvd.Compression.fp16, HalfByHand), "bf16": (hvd.Compression.bf16, BFloatByHand)}
FACTORS = [(1.0, 1.0), (0.3, 0.7)]
on_rounding_ranks = on_all_ranks(*ROUNDING, "hosts3", "hosts4")


def both_ways(array, way, name, **options):
    ours, by_hand = WAYS[way]
    result = hvd.allreduce(array, compression=ours, name=f"{name}.ours", **options)
    expected = hvd.allreduce(array, compression=by_hand, name=f"{name}.by_hand", **options)
    return check_equal(result, expected)


@pytest.mark.parametrize("way", WAYS)
@on_all_ranks("one", "shm2", "tcp2", "shm4")
def test_nothing_is_rounded_on_one_host(way):
    compression = WAYS[way][0]
    arrays = [mine(inputs((count,), "float32", seed=count)) for count in (0, 1, 21, 777, 3001)]
    arrays.append(np.full(5, 1e6 + 1, np.float32))  # float16 would turn these into infinity
    digests = []
    for op in (hvd.Sum, hvd.Average, hvd.Max, hvd.Adasum):
        plain = [hvd.allreduce(array, op=op) for array in arrays]
        alone = [hvd.allreduce(array, op=op, compression=compression) for array in arrays]
        group = hvd.grouped_allreduce(arrays, op=op, compression=compression)
        digests += [check_equal(result, expected) for result, expected in zip(alone + group, plain * 2, strict=True)]
    assert np.isfinite(alone[-1]).all()
    return digests


@on_all_ranks("shm2")
def test_what_numpy_converts_is_rounded_anywhere():
    for number in (1 + 2.0**-12, 1e6):
        array = np.full(3, number, np.float32)
        with np.errstate(over="ignore"):
            rounded = array.astype(np.float16).astype(np.float32)
            np.testing.assert_array_equal(hvd.allreduce(array, compression=HalfByHand), rounded)
            wide = hvd.allreduce(array.astype(np.float64), compression=hvd.Compression.fp16)
        np.testing.assert_array_equal(wide, rounded)


@pytest.mark.checked_numbers("compressed allreduce between hosts", against="NumPy")
@pytest.mark.parametrize("way", WAYS)
@on_rounding_ranks
def test_every_op_and_size(way):
    digests = []
    for count in (0, 1, 21, 40, 777, 3001):
        array = mine(inputs((count,), "float32", seed=count))
        for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
            digests.append(both_ways(array, way, f"{count}.{op}", op=op))
        for pre, post in FACTORS:
            options = {"op": hvd.Average, "prescale_factor": pre, "postscale_factor": post}
            digests.append(both_ways(array, way, f"{count}.{pre}", **options))
    return digests


@pytest.mark.parametrize("way", WAYS)
@on_all_ranks(World("deterministic2-defaults", "a:2", DETERMINISTIC), World("hosts4-defaults", "a:2,b:2"))
def test_sizes_with_the_chunks_of_every_day(way):
    counts = (1000, 100_003, 1_500_001)
    return [both_ways(mine(inputs((count,), "float32")), way, str(count), op=hvd.Average) for count in counts]


@pytest.mark.parametrize("way", WAYS)
@on_rounding_ranks
def test_a_group_of_all_kinds(way):
    ours, by_hand = WAYS[way]
    kinds = ("float32", "int32", "float64", "float16", "float32")
    arrays = [mine(inputs((100 * i + 1,), kind, seed=i)) for i, kind in enumerate(kinds)]
    results = hvd.grouped_allreduce(arrays, op=hvd.Sum, compression=ours, name="ours")
    expected = hvd.grouped_allreduce(arrays, op=hvd.Sum, compression=by_hand, name="by_hand")
    return [check_equal(*pair) for pair in zip(results, expected, strict=True)]


@on_all_ranks(*ROUNDING)
def test_ranks_may_convert_by_themselves():
    """A rank may convert a tensor itself, because the other ranks only see the type that is sent."""
    array = mine(inputs((3001,), "float32"))
    compression = WAYS["fp16"][hvd.rank()]
    expected = hvd.allreduce(array, name="expected", compression=HalfByHand)
    return check_equal(hvd.allreduce(array, name="mixed", compression=compression), expected)


@on_all_ranks(*ROUNDING)
def test_compression_must_be_the_same_everywhere():
    compression = hvd.Compression.fp16 if hvd.rank() == 0 else hvd.Compression.none
    with pytest.raises(hvd.HorovodInternalError, match="'allreduce.x' is float16 on rank 0 but float32 on rank 1"):
        hvd.allreduce(np.ones(5, np.float32), name="x", compression=compression)


@on_all_ranks(*ROUNDING)
def test_values_at_the_edges():
    """The values are ties, subnormal numbers, numbers too large for float16, infinities and NaN."""
    edges = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 2.0**-24, 2.0**-25, 65519.0, 65520.0, 1e38, np.inf, -np.inf, np.nan, -0.0]
    array = np.array(edges * 50, np.float32)
    for way, half in (("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)):
        result = hvd.allreduce(array, op=hvd.Max, compression=WAYS[way][0])
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(result, array.astype(half).astype(np.float32))


@on_all_ranks("hosts4")
def test_in_a_process_set_and_after_a_join():
    array = mine(inputs((3001,), "float32"))
    with process_sets([0, 2, 3]) as [some]:
        if some.included():
            both_ways(array, "bf16", "some", op=hvd.Average, process_set=some)
    if hvd.rank() < 2:  # the other ranks have joined and contribute zeros
        result = hvd.allreduce(array, name="joined", op=hvd.Sum, compression=hvd.Compression.fp16)
        expected = hvd.allreduce(array, name="joined.by_hand", op=hvd.Sum, compression=HalfByHand)
        check_equal(result, expected)
    hvd.join()
