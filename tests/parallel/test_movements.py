# SPDX-License-Identifier: Apache-2.0
"""Allgather, broadcast, alltoall and reducescatter: every dtype, uneven shares and empty ones."""

import numpy as np
import pytest
from harness.arrays import DTYPES, FLOATS, INTEGERS, check_equal, inputs, mine, reduced_by_layout
from harness.worlds import on_all_ranks

import horovod.numpy as hvd

TRAILING = ((), (3,), (2, 0), (4, 31))


def ragged(rows, trailing, dtype):
    """Return the arrays of all ranks, which have these numbers of rows."""
    return [inputs((count, *trailing), dtype, seed=trailing)[rank] for rank, count in enumerate(rows)]


@pytest.mark.checked_numbers("allgather of every data type", against="NumPy")
@pytest.mark.parametrize("dtype", DTYPES)
@on_all_ranks()
def test_allgather_of_every_dtype(dtype):
    arrays = ragged([rank * 3 % 5 for rank in range(hvd.size())], (4, 31), dtype)
    array = mine(arrays)
    result = hvd.allgather(array)
    assert not np.shares_memory(result, array)
    return check_equal(result, np.concatenate(arrays))


@pytest.mark.checked_numbers("allgather of different numbers of rows", against="NumPy")
@on_all_ranks()
def test_allgather_ragged():
    digests = []
    for trailing in TRAILING:
        for rows in ([2] * hvd.size(), [rank % 3 for rank in range(hvd.size())], [0] * hvd.size()):
            arrays = ragged(rows, trailing, "float32")
            digests.append(check_equal(hvd.allgather(mine(arrays)), np.concatenate(arrays)))
    return digests


@on_all_ranks()
def test_allgather_where_one_rank_has_nearly_everything():
    digests = []
    for rich in range(hvd.size()):
        rows = [2003 if rank == rich else rank % 2 for rank in range(hvd.size())]
        arrays = ragged(rows, (3,), "float32")
        digests.append(check_equal(hvd.allgather(mine(arrays)), np.concatenate(arrays)))
    return digests


@on_all_ranks()
def test_allgather_async_under_way_at_once():
    sizes = (1, 40, 0, 700, 3)
    tensors = [ragged([size + rank for rank in range(hvd.size())], (2,), "int32") for size in sizes]
    handles = [hvd.allgather_async(mine(arrays), name=f"gather{index}") for index, arrays in enumerate(tensors)]
    for arrays, handle in zip(reversed(tensors), reversed(handles), strict=True):
        check_equal(hvd.synchronize(handle), np.concatenate(arrays))


@pytest.mark.checked_numbers("broadcast of every data type", against="NumPy")
@pytest.mark.parametrize("dtype", DTYPES)
@on_all_ranks()
def test_broadcast_of_every_dtype(dtype):
    return check_broadcast(hvd.size() - 1, (5, 3, 90), dtype)


@on_all_ranks()
def test_broadcast_from_every_root():
    return [
        check_broadcast(root, shape, "float32") for root in range(hvd.size()) for shape in ((0,), (), (17,), (1001,))
    ]


def check_broadcast(root, shape, dtype):
    arrays = inputs(shape, dtype, seed=shape)
    array, target = mine(arrays), mine(arrays)
    handle = hvd.broadcast_async_(target, root)
    result = hvd.broadcast(array, root)
    assert not np.shares_memory(result, array)
    check_equal(array, arrays[hvd.rank()])
    assert hvd.synchronize(handle) is target
    return check_equal(result, arrays[root]), check_equal(target, arrays[root])


@on_all_ranks()
def test_broadcast_right_behind_another_operation():
    """A rank that only receives must not disturb an earlier operation that is still in flight."""
    for index in range(20):
        before = hvd.allreduce_async(np.full(300, float(index)), op=hvd.Sum, name=f"before{index}")
        handle = hvd.broadcast_async(np.full(300, float(hvd.rank())), index % hvd.size(), name=f"behind{index}")
        check_equal(hvd.synchronize(before), np.full(300, float(index * hvd.size())))
        check_equal(hvd.synchronize(handle), np.full(300, float(index % hvd.size())))


@on_all_ranks()
def test_broadcast_parameters():
    parameters = {name: np.full(shape, hvd.rank(), np.float32) for name, shape in (("w", (30, 9)), ("b", (9,)))}
    hvd.broadcast_parameters(parameters, root_rank=hvd.size() - 1)
    for array in parameters.values():
        assert np.all(array == hvd.size() - 1)


def sent(sender, receiver, rows, trailing, dtype):
    return inputs((rows, *trailing), dtype, seed=f"{sender} {receiver}", size=1)[0]


@pytest.mark.checked_numbers("alltoall of every data type", against="NumPy")
@pytest.mark.parametrize("dtype", DTYPES)
@on_all_ranks()
def test_alltoall_of_every_dtype(dtype):
    check_alltoall((4, 31), dtype, extra=2)


@pytest.mark.checked_numbers("alltoall with splits", against="NumPy")
@on_all_ranks()
def test_alltoall_with_splits():
    for trailing in TRAILING:
        for extra in (0, 2):
            check_alltoall(trailing, "float32", extra)


def check_alltoall(trailing, dtype, extra):
    """Check that rank i sends (i + 2j) % 4 rows to rank j, so that some ranks get none. Extra rows are not sent."""
    ranks = range(hvd.size())
    splits = [(hvd.rank() + 2 * to) % 4 for to in ranks]
    parts = [sent(hvd.rank(), to, rows, trailing, dtype) for to, rows in zip(ranks, splits, strict=True)]
    rest = inputs((extra, *trailing), dtype, size=1)
    result, received = hvd.alltoall(np.concatenate(parts + rest), splits=splits)
    expected_splits = [(sender + 2 * hvd.rank()) % 4 for sender in ranks]
    check_equal(received, np.array(expected_splits, np.int32))
    arrived = [sent(rank, hvd.rank(), rows, trailing, dtype) for rank, rows in enumerate(expected_splits)]
    check_equal(result, np.concatenate(arrived))


@on_all_ranks()
def test_alltoall_in_equal_shares():
    for rows in (0, 1, 5, 200):
        array = np.concatenate([np.full((rows, 3), hvd.rank() * 10 + to, np.int32) for to in range(hvd.size())])
        result = hvd.alltoall(array)
        expected = [np.full((rows, 3), sender * 10 + hvd.rank(), np.int32) for sender in range(hvd.size())]
        check_equal(result, np.concatenate(expected))


@pytest.mark.parametrize("kind", ["list", "int32", "int64", "zero"])
@on_all_ranks()
def test_alltoall_handle_gives_output_and_received_splits(kind):
    splits = [0 if kind == "zero" else 2] * hvd.size()
    given = np.array(splits, kind) if kind.startswith("int") else splits
    output, received = hvd.synchronize(hvd.alltoall_async(np.full(2 * hvd.size(), hvd.rank()), splits=given))
    check_equal(received, np.array(splits, np.int32))
    check_equal(output, np.repeat(np.arange(hvd.size()), splits[0]))


@on_all_ranks()
def test_alltoall_where_one_rank_sends_nearly_everything():
    for rich in range(hvd.size()):
        rows = [1200 if hvd.rank() == rich and to == (rich + 1) % hvd.size() else 1 for to in range(hvd.size())]
        result, received = hvd.alltoall(np.full((sum(rows), 2), hvd.rank(), np.float32), splits=rows)
        mine_is_next = hvd.rank() == (rich + 1) % hvd.size()
        counts = [1200 if sender == rich and mine_is_next else 1 for sender in range(hvd.size())]
        assert received.tolist() == counts
        check_equal(result, np.repeat(np.arange(hvd.size(), dtype=np.float32), counts)[:, None].repeat(2, axis=1))


@on_all_ranks()
def test_what_an_alltoall_was_given_may_be_overwritten_as_soon_as_it_returns():
    rows = 60_000  # for each rank: more than sockets and slots hold, so the data is sent from the caller's array
    array = np.empty(rows * hvd.size(), np.int32)
    for turn in range(5):
        array[:] = np.repeat(np.arange(hvd.size(), dtype=np.int32), rows) + 100 * hvd.rank() + 1000 * turn
        result = hvd.alltoall(array)
        array[:] = -1
        expected = np.arange(hvd.size(), dtype=np.int32) * 100 + hvd.rank() + 1000 * turn
        check_equal(result, np.repeat(expected, rows))


@pytest.mark.checked_numbers("reducescatter of every data type, also with uneven rows", against="NumPy")
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS])
@on_all_ranks()
def test_reducescatter_of_uneven_rows(dtype):
    for rows in (0, 1, 2 * hvd.size() + 1, 203):
        for op in ("Sum", "Average") if rows else ("Sum",):
            arrays = inputs((rows, 3), dtype, seed=f"{rows} {op}")
            array = mine(arrays)
            result = hvd.reducescatter(array, op=hvd.Sum if op == "Sum" else hvd.Average)
            check_equal(array, arrays[hvd.rank()])
            check_equal(result, np.array_split(reduced_by_layout(arrays, op), hvd.size())[hvd.rank()])


@on_all_ranks()
def test_reducescatter_with_factors_and_async():
    arrays = inputs((11, 40), "float32")
    options = {"op": hvd.Average, "prescale_factor": 0.5, "postscale_factor": 3.0}
    handle = hvd.reducescatter_async(mine(arrays), **options)
    expected = np.array_split(reduced_by_layout(arrays, "Average", 0.5, 3.0), hvd.size())[hvd.rank()]
    check_equal(hvd.reducescatter(mine(arrays), **options), expected)
    check_equal(hvd.synchronize(handle), expected)


@on_all_ranks()
def test_objects():
    everyone = hvd.allgather_object({"rank": hvd.rank(), "text": "x" * 50 * hvd.rank()}, name="ragged")
    assert everyone == [{"rank": rank, "text": "x" * 50 * rank} for rank in range(hvd.size())]
    for root in range(hvd.size()):
        own = {"from": hvd.rank(), "data": np.arange(2000)}
        result = hvd.broadcast_object(own, root_rank=root, name=f"object{root}")
        assert result["from"] == root
        assert (result is own) == (hvd.rank() == root)
    assert hvd.broadcast_object({"rows": [1, 2]} if hvd.rank() == 0 else None, 0) == {"rows": [1, 2]}
    kinds = [None, 1, "one", [1]]  # the object's type differs from rank to rank, and the call has no name
    assert hvd.allgather_object(kinds[hvd.rank()]) == kinds[: hvd.size()]


class Unpicklable:
    def __reduce__(self):
        raise TypeError("not for sending")


@on_all_ranks()
def test_an_object_that_cannot_be_pickled_fails_everywhere():
    guilty = hvd.rank() == hvd.size() - 1
    with pytest.raises(TypeError if guilty else hvd.HorovodInternalError, match="not for sending|could not pickle"):
        hvd.allgather_object(Unpicklable() if guilty else 1, name="guilty")
    with pytest.raises(TypeError if guilty else hvd.HorovodInternalError, match="not for sending|could not pickle"):
        hvd.broadcast_object(Unpicklable() if guilty else 1, hvd.size() - 1, name="guilty")
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
