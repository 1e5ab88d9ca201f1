# SPDX-License-Identifier: Apache-2.0
"""Allreduce: every operation and dtype against NumPy, in place and out of place, for arrays of 0 to many chunks."""

import numpy as np
import pytest
from harness.arrays import (
    DTYPES,
    FLOATS,
    INTEGERS,
    OPS,
    SHAPES,
    SIGNED,
    check_equal,
    check_reduced,
    inputs,
    mine,
    reduced,
)
from harness.worlds import ALL, SMALL_CHUNKS, TCP, World, on_all_ranks

import horovod.numpy as hvd


@pytest.mark.checked_numbers("allreduce of every operation and data type, in place and not", against="NumPy")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
@on_all_ranks()
def test_every_op_and_dtype(op, dtype):
    if op == "Average" and dtype == "bool":
        with pytest.raises(ValueError, match="bool is not supported"):
            hvd.allreduce(np.ones(3, bool))
        return None
    return check_both_ways([inputs(shape, dtype, seed=f"{op} {dtype} {shape}") for shape in SHAPES], op)


def check_both_ways(tensors, op, prescale=1.0, postscale=1.0):
    """Reduce the tensors out of place one by one, and in place all at once. Return digests of the results."""
    options = {"op": OPS[op], "prescale_factor": prescale, "postscale_factor": postscale}
    targets = [mine(arrays) for arrays in tensors]
    handles = [hvd.allreduce_async_(target, **options) for target in targets]
    digests = []
    for arrays in tensors:
        array = mine(arrays)
        result = hvd.allreduce(array, **options)
        assert not np.shares_memory(result, array)
        check_equal(array, arrays[hvd.rank()])  # the input is unchanged
        digests.append(check_reduced(result, arrays, op, prescale, postscale))
    for arrays, target, handle in zip(tensors, targets, handles, strict=True):
        assert hvd.synchronize(handle) is target
        digests.append(check_reduced(target, arrays, op, prescale, postscale))
    return digests


@pytest.mark.checked_numbers("prescale and postscale factors on floating-point numbers", against="NumPy")
@pytest.mark.parametrize("factors", [(1, 3), (-2.5, 0.125), (0.1, 0.7)])
@pytest.mark.parametrize("dtype", FLOATS)
@on_all_ranks("one", "tcp2", "shm4", "hosts4")
def test_factors_on_floats(dtype, factors):
    digests = []
    for op in OPS:
        tensors = [inputs(shape, dtype, seed=f"{op} {factors}") for shape in ((17,), (611,))]
        quarters = [[array / array.dtype.type(4) for array in arrays] for arrays in tensors]
        digests += check_both_ways(quarters, op, *factors)
    return digests


@pytest.mark.checked_numbers("prescale and postscale factors on integers", against="NumPy")
@pytest.mark.parametrize("factors", [(0.5, 1), (1, 0.3), (1.5, 0.25)])
@pytest.mark.parametrize("dtype", INTEGERS)
@on_all_ranks("one", "tcp2", "shm4", "hosts4")
def test_factors_on_integers_go_through_double_and_truncate(dtype, factors):
    digests = []
    for op in ("Sum", "Average", "Min", "Max"):
        tensors = [inputs(shape, dtype, seed=f"{op} {factors}") for shape in ((17,), (611,))]
        offset = 14 if dtype in SIGNED else 0
        small = [[(array % 29 - offset).astype(dtype) for array in arrays] for arrays in tensors]
        digests += check_both_ways(small, op, *factors)
    return digests


@pytest.mark.checked_numbers("averages of negative and positive integers", against="the exact quotient")
@pytest.mark.parametrize("dtype", SIGNED)
@on_all_ranks()
def test_integer_average_truncates_toward_zero(dtype):
    """Rank 0 contributes the whole sum, so that it need not be divisible; floor would change negative ones."""
    sums = np.arange(-9, 10, dtype=dtype)
    result = hvd.allreduce(sums if hvd.rank() == 0 else np.zeros_like(sums))
    expected = [int(total / hvd.size()) for total in range(-9, 10)]
    return check_equal(result, np.array(expected, dtype))


@pytest.mark.checked_numbers("sums of integers that are too large for their type", against="NumPy")
@pytest.mark.parametrize("dtype", INTEGERS)
@on_all_ranks("shm2", "tcp4", "hosts4")
def test_integers_wrap(dtype):
    largest = np.iinfo(dtype).max
    with np.errstate(over="ignore"):
        expected = np.full(300, largest, dtype) * np.array(hvd.size()).astype(dtype)
    return check_equal(hvd.allreduce(np.full(300, largest, dtype), op=hvd.Sum), expected)


@pytest.mark.checked_numbers("reductions with a NaN on one rank", against="NumPy")
@pytest.mark.parametrize("op", ["Min", "Max", "Sum", "Product"])
@pytest.mark.parametrize("dtype", FLOATS)
@on_all_ranks("shm2", "shm4", "hosts4")
def test_not_a_number_wins(dtype, op):
    """A NaN of any rank must reach the result: at the first, at the last and at a middle element."""
    digests = []
    for source in range(hvd.size()):
        arrays = inputs((401,), dtype, seed=op)
        for position in (0, 200, 400):
            arrays[source][position] = np.nan
        result = hvd.allreduce(mine(arrays), op=OPS[op]).astype(np.float32)
        assert np.flatnonzero(np.isnan(result)).tolist() == [0, 200, 400]
        digests.append(np.isnan(result).tobytes())
    return digests


@on_all_ranks()
def test_infinities_and_signed_zero():
    array = np.array([np.inf, -np.inf, np.inf if hvd.rank() else 1.0, -0.0], np.float32)
    result = hvd.allreduce(array, op=hvd.Sum)
    expected = np.array([np.inf, -np.inf, np.inf if hvd.size() > 1 else 1.0, -0.0], np.float32)
    check_equal(result, expected)
    assert np.signbit(result[3])


@on_all_ranks()
def test_bool_ignores_what_a_true_byte_looks_like():
    odd = np.array([2, 0, 255], np.uint8).view(bool)
    assert hvd.allreduce(odd, op=hvd.Sum).view(np.uint8).tolist()[1] == 0
    assert hvd.allreduce(odd, op=hvd.Min).tolist() == [True, False, True]


@on_all_ranks()
def test_default_is_average_and_legacy_argument():
    arrays = inputs((40,), "float32")
    with pytest.warns(DeprecationWarning, match="average is deprecated"):
        legacy = hvd.allreduce(mine(arrays), average=False)
    return check_reduced(hvd.allreduce(mine(arrays)), arrays, "Average"), check_reduced(legacy, arrays, "Sum")


@on_all_ranks()
def test_inputs_of_every_kind():
    """Inputs are lists, scalars, and read-only slices of a larger array at different alignments."""
    assert hvd.allreduce([1, 2], op=hvd.Sum).tolist() == [hvd.size(), 2 * hvd.size()]
    assert hvd.allreduce(2.5) == 2.5
    digests = []
    for start in range(1, 9):
        arrays = [array[start : start + 333] for array in inputs((400,), "float32")]
        view = inputs((400,), "float32")[hvd.rank()][start : start + 333]
        view.flags.writeable = False
        digests.append(check_reduced(hvd.allreduce(view, op=hvd.Sum), arrays, "Sum"))
    return digests


@on_all_ranks()
def test_in_place_leaves_the_neighbours_alone():
    whole = np.full(900, 7, np.int32)
    hvd.allreduce_(whole[100:700], op=hvd.Sum)
    assert np.all(whole[:100] == 7)
    assert np.all(whole[700:] == 7)
    assert np.all(whole[100:700] == 7 * hvd.size())


@on_all_ranks()
def test_compression():
    """Values are rounded to float16 between hosts, but not between the ranks of one host."""
    arrays = inputs((300,), "float32")
    result = hvd.allreduce(mine(arrays), op=hvd.Sum, compression=hvd.Compression.fp16)
    assert result.dtype == np.float32
    if hvd.local_size() < hvd.size():
        halves = [array.astype(np.float16) for array in arrays]
        check_reduced(result.astype(np.float16), halves, "Sum")
    else:
        check_reduced(result, arrays, "Sum")


DEFAULT_SIZES = [
    World("shm2-defaults", "a:2"),
    World("tcp2-defaults", "a:2", TCP),
    World("hosts4-defaults", "a:2,b:2"),
    World("hosts4-deterministic", "a:2,b:2", SMALL_CHUNKS | {"HOROVOD_DETERMINISTIC": "1"}),
    World("hosts4-flat", "a:2,b:2", SMALL_CHUNKS | {"HOROVOD_HIERARCHICAL_ALLREDUCE": "0"}),
]


@pytest.mark.parametrize("count", [1, 1000, 100_003, 1_500_001])
@on_all_ranks(*DEFAULT_SIZES[:3])
def test_sizes_with_the_chunks_of_every_day(count):
    digests = []
    for dtype in ("float32", "bfloat16"):
        arrays = inputs((count,), dtype)
        digests.append(check_reduced(hvd.allreduce(mine(arrays), op=hvd.Sum), arrays, "Sum"))
    return digests


@pytest.mark.checked_numbers("bits of sums with HOROVOD_DETERMINISTIC=1", against="the bits on another layout of hosts")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@on_all_ranks(*DEFAULT_SIZES[3:])
def test_layout_of_hosts_need_not_show_in_the_bits(dtype):
    arrays = inputs((3001,), dtype)
    return check_equal(hvd.allreduce(mine(arrays), op=hvd.Sum), reduced(arrays, "Sum"))


@pytest.mark.checked_numbers("the bits of a tensor that is reduced alone", against="the same tensor in a fused batch")
@on_all_ranks(*ALL)
def test_same_bits_alone_and_fused():
    """The result of an allreduce must not depend on the tensors that the engine fuses with it."""
    arrays = [inputs((size,), "float32", seed=size) for size in (1, 50, 333, 1000, 7)]
    alone = [hvd.allreduce(mine(each), op=hvd.Sum, name=f"alone{i}") for i, each in enumerate(arrays)]
    handles = [hvd.allreduce_async(mine(each), op=hvd.Sum, name=f"fused{i}") for i, each in enumerate(arrays)]
    fused = [hvd.synchronize(handle) for handle in handles]
    together = hvd.grouped_allreduce([mine(each) for each in arrays], op=hvd.Sum)
    for one, two, three in zip(alone, fused, together, strict=True):
        check_equal(two, one)
        check_equal(three, one)
