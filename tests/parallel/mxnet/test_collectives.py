# SPDX-License-Identifier: Apache-2.0
"""Every operation on every supported dtype against NumPy, bit for bit."""

import numpy as np
import pytest
from harness import arrays
from harness.mxnet_arrays import DTYPES, SHAPES, array_of, mx, on_mxnet_ranks
from harness.sets import process_sets

import horovod.mxnet as hvd

TWO_AND_FOUR = ("shm2", "shm4")


def cases(*, floats_only=False):
    for dtype in DTYPES:
        for shape in SHAPES:
            if not floats_only or dtype.startswith("float"):
                yield arrays.inputs(shape, dtype, f"{dtype}{shape}")


@pytest.mark.checked_numbers("allreduce", against="NumPy")
@on_mxnet_ranks(*TWO_AND_FOUR)
@pytest.mark.parametrize("op", list(arrays.OPS))
def test_allreduce(op):
    digests = []
    for given in cases():
        mine = array_of(arrays.mine(given))
        result = hvd.allreduce(mine, op=arrays.OPS[op])
        digests.append(arrays.check_reduced(result.asnumpy(), given, op))
        arrays.check_equal(mine.asnumpy(), arrays.mine(given))
        assert hvd.allreduce_(mine, op=arrays.OPS[op]) is mine
        arrays.check_reduced(mine.asnumpy(), given, op)
    return digests


@pytest.mark.checked_numbers(
    "averages of integer arrays under 64 bits whose sums overflow", against="the exact quotient"
)
@on_mxnet_ranks("shm2")
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_the_average_of_integers_is_exact(dtype):
    own, expected = arrays.averages_of_two(dtype, hvd.rank())
    mine = array_of(own)
    for result in (hvd.allreduce(mine), *hvd.grouped_allreduce([mine, mine])):
        arrays.check_equal(result.asnumpy(), expected)
    for result in (hvd.reducescatter(mine), *hvd.grouped_reducescatter([mine])):
        arrays.check_equal(result.asnumpy(), share(expected))
    arrays.check_equal(mine.asnumpy(), own)
    hvd.allreduce_(mine)
    arrays.check_equal(mine.asnumpy(), expected)


@on_mxnet_ranks(*TWO_AND_FOUR)
def test_allreduce_with_factors_and_old_arguments():
    for given in cases(floats_only=True):
        mine = array_of(arrays.mine(given))
        result = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0, priority=-4, name="factors")
        arrays.check_reduced(result.asnumpy(), given, "Sum", 0.5, 3.0)
    with pytest.warns(DeprecationWarning, match="average is deprecated"):
        total = hvd.allreduce(mx.nd.ones(3), average=False)
    assert total.asnumpy().tolist() == [hvd.size()] * 3
    assert hvd.allreduce(mx.nd.ones(3)).asnumpy().tolist() == [1, 1, 1]


@on_mxnet_ranks(*TWO_AND_FOUR)
def test_groups():
    given = [arrays.inputs(shape, "float32", shape) for shape in SHAPES]
    mine = [array_of(arrays.mine(one)) for one in given]
    for result, one in zip(hvd.grouped_allreduce(mine, op=hvd.Sum, name="group"), given, strict=True):
        arrays.check_reduced(result.asnumpy(), one, "Sum")
    scattered = hvd.grouped_reducescatter(mine, op=hvd.Sum)
    for result, one in zip(scattered, given, strict=True):
        arrays.check_equal(result.asnumpy(), share(arrays.reduced(one, "Sum")))
    for result, one in zip(hvd.grouped_allgather(mine), given, strict=True):
        arrays.check_equal(result.asnumpy(), np.concatenate(one))
    results = hvd.grouped_allreduce_(mine, op=hvd.Max)
    assert all(result is array for result, array in zip(results, mine, strict=True))
    for result, one in zip(mine, given, strict=True):
        arrays.check_reduced(result.asnumpy(), one, "Max")


def share(whole):
    return np.array_split(whole, hvd.size())[hvd.rank()]


@pytest.mark.checked_numbers("reducescatter", against="NumPy")
@on_mxnet_ranks(*TWO_AND_FOUR)
def test_reducescatter():
    for given in cases(floats_only=True):
        mine = array_of(arrays.mine(given))
        result = hvd.reducescatter(mine, op=hvd.Sum, prescale_factor=2.0)
        arrays.check_equal(result.asnumpy(), share(arrays.reduced(given, "Sum", 2.0)))
        average = hvd.reducescatter(mine)
        arrays.check_equal(average.asnumpy(), share(arrays.reduced(given, "Average")))


@on_mxnet_ranks(*TWO_AND_FOUR)
def test_broadcast():
    root = hvd.size() - 1
    for given in cases():
        mine = array_of(arrays.mine(given))
        arrays.check_equal(hvd.broadcast(mine, root).asnumpy(), given[root])
        arrays.check_equal(mine.asnumpy(), arrays.mine(given))
        assert hvd.broadcast_(mine, 0) is mine
        arrays.check_equal(mine.asnumpy(), given[0])


@on_mxnet_ranks(*TWO_AND_FOUR)
def test_allgather_of_different_numbers_of_rows():
    for dtype in DTYPES:
        given = [arrays.inputs((rank + 1, 3), dtype, dtype)[rank] for rank in range(hvd.size())]
        result = hvd.allgather(array_of(given[hvd.rank()]), name=f"gather.{dtype}")
        arrays.check_equal(result.asnumpy(), np.concatenate(given))


@pytest.mark.checked_numbers("alltoall", against="NumPy")
@on_mxnet_ranks(*TWO_AND_FOUR)
def test_alltoall():
    me, size = hvd.rank(), hvd.size()
    for dtype in DTYPES:
        given = arrays.inputs((size * 2, 3), dtype, dtype)
        result = hvd.alltoall(array_of(given[me]))
        arrays.check_equal(result.asnumpy(), np.concatenate([one[me * 2 : me * 2 + 2] for one in given]))
    # Every rank sends i + 1 rows to member i, and one row is left over.
    starts = np.cumsum([0, *range(1, size + 1)])
    given = arrays.inputs((int(starts[-1]) + 1, 2), "float32", "uneven")
    for splits in (list(range(1, size + 1)), mx.nd.array(range(1, size + 1), dtype="int32")):
        result, received = hvd.alltoall(array_of(given[me]), splits=splits)
        arrays.check_equal(result.asnumpy(), np.concatenate([one[starts[me] : starts[me + 1]] for one in given]))
        assert received.dtype == np.int32
        assert received.asnumpy().tolist() == [me + 1] * size


@on_mxnet_ranks("shm4")
def test_alltoall_to_one_rank_only():
    mine = mx.nd.ones((2, 3)) * hvd.rank()
    result, received = hvd.alltoall(mine, splits=[2, 0, 0, 0])
    assert received.asnumpy().tolist() == ([2] * 4 if hvd.rank() == 0 else [0] * 4)
    assert result.shape == ((8, 3) if hvd.rank() == 0 else (0, 3))
    if hvd.rank() == 0:
        assert result.asnumpy()[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@on_mxnet_ranks(*TWO_AND_FOUR)
def test_arrays_of_mxnet_numpy():
    with mx.util.np_shape(True), mx.util.np_array(True):
        mine = mx.np.full((2, 2), hvd.rank() + 1.0)
        total = hvd.allreduce(mine, op=hvd.Sum)
        assert isinstance(total, mx.np.ndarray)
        assert total.asnumpy().tolist() == np.full((2, 2), sum(range(1, hvd.size() + 1))).tolist()
        scalar = hvd.allreduce(mx.np.array(hvd.rank()), op=hvd.Max)
        assert (scalar.shape, scalar.item()) == ((), hvd.size() - 1)
        rows = mx.np.ones((hvd.rank(), 2))  # no row on rank 0
        assert hvd.allgather(rows).shape == (sum(range(hvd.size())), 2)


@on_mxnet_ranks("shm4")
def test_process_sets():
    with process_sets([0, 2], [1, 3]) as sets:
        mine = sets[hvd.rank() % 2]
        other = sets[1 - hvd.rank() % 2]
        total = hvd.allreduce(mx.nd.ones(2) * hvd.rank(), op=hvd.Sum, process_set=mine)
        assert total.asnumpy().tolist() == [sum(mine.ranks)] * 2
        assert hvd.allgather(mx.nd.array([hvd.rank()]), process_set=mine).asnumpy().tolist() == mine.ranks
        root = mine.ranks[1]
        assert hvd.broadcast(mx.nd.array([hvd.rank()]), root, process_set=mine).asscalar() == root
        moved = hvd.alltoall(mx.nd.array([hvd.rank(), 10 + hvd.rank()]), process_set=mine)
        assert moved.asnumpy().tolist() == [rank + 10 * mine.rank() for rank in mine.ranks]
        assert hvd.reducescatter(mx.nd.ones(4), op=hvd.Sum, process_set=mine).asnumpy().tolist() == [2, 2]
        with pytest.raises(ValueError, match="not a member"):
            hvd.allreduce(mx.nd.ones(2), process_set=other)


@on_mxnet_ranks(*TWO_AND_FOUR)
def test_objects():
    assert hvd.broadcast_object({"rank": hvd.rank()}, root_rank=1) == {"rank": 1}
    assert hvd.allgather_object(("rank", hvd.rank())) == [("rank", rank) for rank in range(hvd.size())]
    assert hvd.broadcast_object({"rate": 0.1} if hvd.rank() == 0 else None, 0) == {"rate": 0.1}
    assert hvd.allgather_object(hvd.rank() or None) == [None, *range(1, hvd.size())]


@on_mxnet_ranks("shm2")
def test_compression():
    values = mx.nd.array([1.0, 2.5, 1e-9])
    sent, context = hvd.Compression.fp16.compress(values)
    assert sent.dtype == np.float16
    back = hvd.Compression.fp16.decompress(hvd.allreduce(sent, op=hvd.Sum), context)
    assert back.dtype == np.float32
    assert back.asnumpy().tolist() == [2.0, 5.0, 0.0]
    counts = mx.nd.array([3], dtype="int32")
    assert hvd.Compression.fp16.compress(counts) == (counts, None)
    assert hvd.Compression.none.compress(values) == (values, None)
