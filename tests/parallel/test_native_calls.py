# SPDX-License-Identifier: Apache-2.0
"""Ordinary NumPy calls run natively, unusual ones through Python; results, errors and handles must not differ."""

import os
import sys
import time
import warnings

import numpy as np
import pytest
from harness.arrays import check_equal
from harness.waiting import sigint_after_a_moment
from harness.worlds import SEVERAL, on_all_ranks
from testkit.speed import patience

import horovod.numpy as hvd
from horovod.numpy.mpi_ops import _native

Sum, Average = hvd.Sum, hvd.Average


class Text(str):
    """String subclass, which only the Python path accepts as a name."""

    __slots__ = ()


def read_only(array):
    array.flags.writeable = False
    return array


# Two forms of each call: the first runs natively, the second through Python.
WAYS = {
    "allreduce": (
        lambda x, name: hvd.allreduce(x, name=name, op=Sum),
        lambda x, name: hvd.allreduce(x, name=name, op=np.int64(Sum)),
    ),
    "allreduce with factors": (
        lambda x, name: hvd.allreduce(x, name=name, prescale_factor=2.0, postscale_factor=0.5),
        lambda x, name: hvd.allreduce(x, name=name, prescale_factor=2, postscale_factor=0.5),
    ),
    "allreduce in place": (
        lambda x, name: hvd.allreduce_(x, name=name, op=hvd.Max),
        lambda x, name: hvd.allreduce_(x, name=name, op=np.int64(hvd.Max)),
    ),
    "allgather": (
        lambda x, name: hvd.allgather(x, name=name),
        lambda x, name: hvd.allgather(read_only(x), name=name),
    ),
    "broadcast": (
        lambda x, name: hvd.broadcast(x, hvd.size() - 1, name=name),
        lambda x, name: hvd.broadcast(x, np.int64(hvd.size() - 1), name=name),
    ),
    "broadcast in place": (
        lambda x, name: hvd.broadcast_(x, 0, name=name),
        lambda x, name: hvd.broadcast_(x, np.int64(0), name=name),
    ),
    "alltoall": (
        lambda x, name: hvd.alltoall(x, name=name),
        lambda x, name: hvd.alltoall(read_only(x), name=name),
    ),
    "alltoall with splits": (
        lambda x, name: hvd.alltoall(x, [1] * hvd.size(), name=name),
        lambda x, name: hvd.alltoall(x, np.ones(hvd.size(), np.uint8), name=name),
    ),
    "reducescatter": (
        lambda x, name: hvd.reducescatter(x, name=name, op=Sum),
        lambda x, name: hvd.reducescatter(x, name=name, op=np.int64(Sum)),
    ),
    "allreduce async": (
        lambda x, name: hvd.synchronize(hvd.allreduce_async(x, name=name)),
        lambda x, name: hvd.synchronize(hvd.allreduce_async(x.tolist(), name=name)),
    ),
    "alltoall async": (
        lambda x, name: hvd.synchronize(hvd.alltoall_async(x, name=name)),
        lambda x, name: hvd.synchronize(hvd.alltoall_async(read_only(x), name=name)),
    ),
}


def flat(result):
    """Return the dtypes, shapes and values of a result, so that results can be compared."""
    arrays = result if isinstance(result, tuple) else (result,)
    assert all(type(array) is np.ndarray and array.flags.carray for array in arrays)
    return [(array.dtype.str, array.shape, array.tolist()) for array in arrays]


@pytest.mark.parametrize("call", WAYS)
@on_all_ranks("one", "shm2", "tcp2", "hosts4")
def test_ranks_may_go_either_way(call):
    """Calls without a name work too: each takes exactly one number, on either path."""
    native, through_python = WAYS[call]

    def data():
        return np.arange(12.0).reshape(4, 3) + 100 * hvd.rank()

    expected = flat(native(data(), "x"))
    mixed = through_python if hvd.rank() % 2 else native
    for name in ("x", None, "", None):
        assert flat(through_python(data(), name)) == expected
        assert flat(mixed(data(), name)) == expected
        assert flat(native(data(), name)) == expected


DECLINED = {
    "a list": {"tensor": [1.0]},
    "nothing": {"tensor": None},
    "strides": {"tensor": np.zeros((4, 4))[:, :2]},
    "byte order": {"tensor": np.zeros(3, ">f4")},
    "a dtype that the engine lacks": {"tensor": np.zeros(3, np.complex128)},
    "an average of bool": {"tensor": np.zeros(3, bool), "op": Average},
    "a factor for bool": {"tensor": np.zeros(3, bool), "factor": 0.5},
    "a factor that is not a float": {"factor": 1},
    "Adasum": {"op": hvd.Adasum},
    "not a reduce operation": {"op": 6},
    "the older argument": {"average": True},
    "a name that is not a string": {"name": 7},
    "a name that is not quite a string": {"name": Text("x")},
    "a name that UTF-8 cannot write": {"name": "\ud800"},
    "no process set": {"member": None},
}


@pytest.mark.parametrize("case", DECLINED)
@on_all_ranks("one")
def test_whatever_is_odd_is_left_to_python(case):
    wanted = {"tensor": np.zeros(3), "name": None, "average": None, "op": Sum, "factor": 1.0}
    wanted |= {"member": hvd.global_process_set.native} | DECLINED[case]
    before = hvd.global_process_set.membership.full_name("allreduce", None)
    factors = (wanted["factor"], 1.0)
    reduction = (wanted["average"], wanted["op"], *factors)
    assert _native.allreduce(wanted["member"], wanted["tensor"], True, True, wanted["name"], *reduction) is None
    after = hvd.global_process_set.membership.full_name("allreduce", None)
    assert int(after.rpartition(".")[2]) == int(before.rpartition(".")[2]) + 1, "a number was taken and not used"


@on_all_ranks()
def test_splits_of_every_kind():
    """Member i gets i rows; no member gets the last row."""
    rows, size = hvd.size() * (hvd.size() - 1) // 2, hvd.size()
    array = np.arange(2.0 * (rows + 1)).reshape(-1, 2) + 1000 * hvd.rank()
    counts = list(range(size))
    answers = []
    for splits in (counts, tuple(counts), np.array(counts, np.int32), np.array(counts), np.array(counts, np.int16)):
        output, received = hvd.alltoall(array, splits, name="x")
        answers.append((output.tolist(), received.tolist(), str(received.dtype)))
    begin = hvd.rank() * (hvd.rank() - 1) // 2
    expected = [array[begin : begin + hvd.rank()] + 1000 * (rank - hvd.rank()) for rank in range(size)]
    assert answers[0] == (np.concatenate(expected).tolist(), [hvd.rank()] * size, "int32")
    assert all(answer == answers[0] for answer in answers)
    for bad in ([-1] * size, [rows + 2, *[0] * (size - 1)], [*counts, 0], [1 << 80] * size, [0.5] * size):
        with pytest.raises((ValueError, OverflowError)):
            hvd.alltoall(array, bad, name="x")


@on_all_ranks()
def test_results_have_memory_of_their_own():
    arrays = [np.full((3, 2), float(index)) for index in range(20)]
    gathered = [hvd.allgather(array, name=f"x{index}") for index, array in enumerate(arrays)]
    for index, result in enumerate(gathered):
        result += 0.5
        check_equal(result, np.full((3 * hvd.size(), 2), index + 0.5))
        check_equal(arrays[index], np.full((3, 2), float(index)))


@on_all_ranks()
def test_an_input_that_changes_its_shape_meanwhile():
    array = np.arange(6, dtype=np.int32).reshape(3, 2)
    handle = hvd.allgather_async(array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy 2.5 deprecates setting the shape
        array.shape = (6,)
    check_equal(hvd.synchronize(handle), np.tile(np.arange(6, dtype=np.int32).reshape(3, 2), (hvd.size(), 1)))


@on_all_ranks()
def test_handles_count_whichever_way_they_go():
    first = hvd.allreduce_async(np.ones(2), name="a")
    handles = [first, hvd.allreduce_async([1.0, 1.0], name="b"), hvd.allgather_async(np.ones(2), name="c")]
    assert handles == [first, first + 1, first + 2]
    for handle in handles:
        assert hvd.poll(handle) in (True, False)
    check_equal(hvd.synchronize(np.int64(handles[2])), np.ones(2 * hvd.size()))
    for handle in handles[:2]:
        check_equal(hvd.synchronize(handle), np.ones(2))
    for handle in (*handles, "no handle", None, 1 << 70):
        assert hvd.synchronize(handle) is None
        with pytest.raises(ValueError, match="was not created or has been cleared"):
            hvd.poll(handle)


@on_all_ranks(*SEVERAL)
def test_a_name_in_flight_is_refused_and_the_first_goes_on():
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(2), op=Sum, name="twice")
        for again in (np.ones(2), [1.0, 1.0]):
            with pytest.raises(ValueError, match="'allreduce.twice' is already being processed"):
                hvd.allreduce_async(again, op=Sum, name="twice")
    hvd.barrier()
    if hvd.rank() != 0:
        handle = hvd.allreduce_async(np.ones(2), op=Sum, name="twice")
    check_equal(hvd.synchronize(handle), np.full(2, float(hvd.size())))


@on_all_ranks(*SEVERAL)
def test_errors_carry_the_operation():
    shape = (2 if hvd.rank() else 3,)
    for call in (
        lambda: hvd.allreduce(np.ones(shape), name="x"),
        lambda: hvd.synchronize(hvd.allreduce_async_(np.ones(shape), name="x")),
    ):
        with pytest.raises(hvd.HorovodMismatchError) as raised:
            call()
        assert raised.value.operation == "allreduce.x"
        assert raised.value.__cause__ is None


def interrupted(call):
    """Run a call that only SIGINT can end, and send SIGINT after a moment."""
    with pytest.raises(KeyboardInterrupt), sigint_after_a_moment() as sent:
        call()
    took = time.monotonic() - sent[0]
    assert took < patience(10), f"{took} s"


@on_all_ranks("shm2", "tcp2")
def test_a_signal_breaks_synchronize_which_can_be_repeated():
    if hvd.rank() == 0:
        handles = [hvd.allreduce_async(np.ones(3), op=Sum, name="late"), hvd.allgather_async(np.ones(3), name="late")]
        for handle in handles:
            interrupted(lambda handle=handle: hvd.synchronize(handle))
    hvd.barrier()
    if hvd.rank() != 0:
        handles = [hvd.allreduce_async(np.ones(3), op=Sum, name="late"), hvd.allgather_async(np.ones(3), name="late")]
    check_equal(hvd.synchronize(handles[0]), np.full(3, float(hvd.size())))
    check_equal(hvd.synchronize(handles[1]), np.ones(3 * hvd.size()))


@on_all_ranks("shm2", "tcp2")
def test_a_signal_breaks_a_blocking_call_whose_arrays_stay():
    """The array must stay alive, because the engine writes to it when the other rank calls."""
    array = np.ones(3)
    if hvd.rank() == 0:
        references = sys.getrefcount(array)
        interrupted(lambda: hvd.allreduce_(array, op=Sum, name="broken"))
        assert sys.getrefcount(array) > references
    hvd.barrier()
    if hvd.rank() != 0:
        hvd.allreduce_(array, op=Sum, name="broken")
    hvd.barrier()
    deadline = time.monotonic() + patience(10)
    while not np.array_equal(array, np.full(3, float(hvd.size()))):
        assert time.monotonic() < deadline, array
        os.sched_yield()


@on_all_ranks("shm2")
def test_an_array_under_way_cannot_be_resized():
    """NumPy refuses to resize the array while an operation of any kind uses it, and allows it afterwards."""
    starts = [
        lambda array: hvd.allreduce_async_(array, name="fixed", op=Sum),
        lambda array: hvd.allreduce_async_(array, name="fixed", op=np.int64(Sum)),
        lambda array: hvd.allreduce_async(array, name="fixed", op=Sum),
        lambda array: hvd.grouped_allreduce_async_([array], name="fixed", op=Sum),
        lambda array: hvd.allgather_async(array, name="fixed"),
    ]
    for start in starts:
        array = np.ones(1000)
        handle = start(array)
        with pytest.raises(ValueError, match="cannot resize"):
            array.resize(4000, refcheck=False)
        hvd.synchronize(handle)
        array.resize(4000, refcheck=False)
        assert array.shape == (4000,)


@on_all_ranks("shm2")
def test_the_owner_of_a_view_under_way_cannot_be_resized():
    # The first runs natively, the second through Python.
    for view in (lambda array: array[10:], lambda array: read_only(array[10:])):
        array = np.ones(1000)
        handle = hvd.allreduce_async(view(array), name="view", op=Sum)
        with pytest.raises(ValueError, match="cannot resize"):
            array.resize(4000)
        check_equal(hvd.synchronize(handle), np.full(990, float(hvd.size())))
        array.resize(4000)


@pytest.mark.checked_numbers("NumPy arrays that the program drops while they are reduced", against="NumPy")
@on_all_ranks("shm2")
def test_an_array_may_be_dropped_meanwhile():
    """Rank 1 calls after rank 0 has dropped its array and has allocated other arrays of that size."""
    count = 100_000
    starts = [
        lambda array: hvd.allreduce_async(array, name="dropped", op=Sum),
        lambda array: hvd.allreduce_async(array, name="dropped", op=np.int64(Sum)),
        lambda array: hvd.allreduce_async(array.tolist(), name="dropped", op=Sum),
        lambda array: hvd.grouped_allreduce_async([array], name="dropped", op=Sum),
    ]
    for start in starts:
        array = np.arange(float(count)) + hvd.rank()
        if hvd.rank() == 0:
            handle = start(array)
            del array
            others = [np.full(count, -1.0) for _ in range(20)]
            hvd.allreduce(np.ones(1), name="rank 0 has dropped it")
            assert all((other == -1.0).all() for other in others)
        else:
            hvd.allreduce(np.ones(1), name="rank 0 has dropped it")
            handle = start(array)
        result = hvd.synchronize(handle)
        check_equal(result[0] if isinstance(result, tuple) else result, 2 * np.arange(float(count)) + 1)
