# SPDX-License-Identifier: Apache-2.0
"""Adasum against a NumPy reference of the pairwise tree, and the properties that define Adasum."""

import numpy as np
import pytest
from harness.arrays import check_equal, comparable, digest, dtype_of, inputs, mine
from harness.worlds import SEVERAL, on_all_ranks

import horovod.numpy as hvd

EPSILON = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 4e-2}


def pair(a, b):
    """Return a + b without half of the projection of b on a and half of the projection of a on b."""
    dot, aa, bb = np.vdot(a, b), np.vdot(a, a), np.vdot(b, b)
    return (1 - dot / (2 * aa) if aa else 1) * a + (1 - dot / (2 * bb) if bb else 1) * b


def tree(vectors):
    """Combine vectors pairwise in rank order, level by level; the last of an odd number moves up unchanged."""
    vectors = [vector.astype(np.float64) for vector in vectors]
    while len(vectors) > 1:
        pairs = [pair(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=False)]
        vectors = pairs + vectors[len(pairs) * 2 :]
    return vectors[0]


def check_close(result, expected, dtype):
    assert result.dtype == dtype_of(dtype)
    tolerance = EPSILON[dtype]
    np.testing.assert_allclose(comparable(result), expected, rtol=tolerance, atol=tolerance * 8)
    return digest(result)


@pytest.mark.checked_numbers("Adasum", against="NumPy")
@pytest.mark.parametrize("shape", [(0,), (), (17,), (5, 3, 7), (1237,)])
@pytest.mark.parametrize("dtype", EPSILON)
@on_all_ranks()
def test_against_the_tree(dtype, shape):
    arrays = inputs(shape, dtype)
    array, target = mine(arrays), mine(arrays)
    result = hvd.allreduce(array, op=hvd.Adasum)
    check_equal(array, arrays[hvd.rank()])
    assert hvd.allreduce_(target, op=hvd.Adasum) is target
    check_equal(target, result)
    return check_close(result, tree(arrays), dtype)


@on_all_ranks()
def test_equal_gradients_are_averaged():
    gradient = inputs((700,), "float64", size=1)[0]
    return check_close(hvd.allreduce(gradient, op=hvd.Adasum), gradient, "float64")


@on_all_ranks()
def test_orthogonal_gradients_are_added():
    gradient = np.zeros(hvd.size() * 100)
    gradient[hvd.rank() * 100 : (hvd.rank() + 1) * 100] = 1 + hvd.rank()
    expected = np.repeat(np.arange(1.0, hvd.size() + 1), 100)
    return check_close(hvd.allreduce(gradient, op=hvd.Adasum), expected, "float64")


@on_all_ranks()
def test_zero_gradients_change_nothing():
    gradient = np.zeros(300, np.float32)
    if hvd.rank() == hvd.size() - 1:
        gradient[:] = np.arange(300)
    check_equal(hvd.allreduce(np.zeros(300, np.float32), op=hvd.Adasum), np.zeros(300, np.float32))
    return check_close(hvd.allreduce(gradient, op=hvd.Adasum), np.arange(300), "float32")


@on_all_ranks()
def test_scale_of_one_rank_does_not_leak_into_the_others():
    """Rank 0's gradient is 1000 times as large as the others'; the result must still match the reference."""
    gradient = inputs((50,), "float64", size=1)[0]
    factor = 1000.0 if hvd.rank() == 0 else 1.0
    vectors = [gradient * (1000.0 if rank == 0 else 1.0) for rank in range(hvd.size())]
    return check_close(hvd.allreduce(gradient * factor, op=hvd.Adasum) / 1000, tree(vectors) / 1000, "float64")


@on_all_ranks()
def test_factors():
    arrays = inputs((400,), "float64")
    result = hvd.allreduce(mine(arrays), op=hvd.Adasum, prescale_factor=0.5, postscale_factor=4)
    return check_close(result, 4 * tree([array / 2 for array in arrays]), "float64")


@on_all_ranks()
def test_each_tensor_of_a_group_is_combined_by_itself():
    tensors = [inputs((size,), "float64", seed=size) for size in (5, 900, 1, 300)]
    results = hvd.grouped_allreduce([mine(arrays) for arrays in tensors], op=hvd.Adasum)
    return [check_close(result, tree(arrays), "float64") for result, arrays in zip(results, tensors, strict=True)]


@on_all_ranks(*SEVERAL)
def test_only_in_the_global_set():
    process_set = hvd.add_process_set([0])
    if hvd.rank() == 0:
        with pytest.raises(NotImplementedError, match="global process set"):
            hvd.allreduce(np.ones(3), op=hvd.Adasum, process_set=process_set)
    assert hvd.remove_process_set(process_set)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
@on_all_ranks()
def test_integers_are_refused(dtype):
    with pytest.raises((ValueError, hvd.HorovodInternalError)):
        hvd.allreduce(np.ones(3, dtype), op=hvd.Adasum)
    check_equal(hvd.allreduce(np.ones(3), op=hvd.Sum), np.full(3, float(hvd.size())))
