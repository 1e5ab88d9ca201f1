# SPDX-License-Identifier: Apache-2.0
"""Mistakes: class and text of the error on every rank that must get it, and an engine that keeps working."""

import numpy as np
import pytest
from harness.arrays import check_equal, odd_one_out
from harness.worlds import SEVERAL, on_all_ranks

import horovod.numpy as hvd
from horovod.common.calls import ALLREDUCE, BROADCAST
from horovod.common.context import default_context
from horovod.common.dtypes import ID_BY_NAME


def check_engine_works():
    check_equal(hvd.allreduce(np.ones(400), op=hvd.Sum, name="after"), np.full(400, float(hvd.size())))
    check_equal(hvd.allgather(np.array([hvd.rank()])), np.arange(hvd.size()))


MISMATCHES = {
    "dtype": (
        lambda odd: hvd.allreduce(np.ones(3, "f8" if odd else "f4"), name="x"),
        "Mismatched data types: tensor 'allreduce.x' is float32 on rank 0 but float64 on rank {odd}.",
    ),
    "dtype of allgather": (
        lambda odd: hvd.allgather(np.ones(3, "i8" if odd else "u1"), name="x"),
        "Mismatched data types: tensor 'allgather.x' is uint8 on rank 0 but int64 on rank {odd}.",
    ),
    "shape": (
        lambda odd: hvd.allreduce(np.ones((2, 3) if odd else (3, 2)), name="x"),
        "Mismatched ALLREDUCE tensor shapes: tensor 'allreduce.x' has shape [3, 2] on rank 0 but [2, 3] on rank {odd}.",
    ),
    "dimensions": (
        lambda odd: hvd.allreduce(np.ones(()) if odd else np.ones(1), name="x"),
        "Mismatched ALLREDUCE tensor shapes: tensor 'allreduce.x' has shape [1] on rank 0 but [] on rank {odd}.",
    ),
    "shape of allgather": (
        lambda odd: hvd.allgather(np.ones((2, 4) if odd else (5, 3)), name="x"),
        "Mismatched ALLGATHER tensor shapes: tensor 'allgather.x' has shape [5, 3] on rank 0 but [2, 4] on rank {odd}.",
    ),
    "shape of broadcast": (
        lambda odd: hvd.broadcast(np.ones(3 if odd else 4), 0, name="x"),
        "Mismatched BROADCAST tensor shapes: tensor 'broadcast.x' has shape [4] on rank 0 but [3] on rank {odd}.",
    ),
    "shape of alltoall": (
        lambda odd: hvd.alltoall(np.ones((hvd.size(), 2 if odd else 1)), name="x"),
        "Mismatched ALLTOALL tensor shapes: tensor 'alltoall.x' has shape [{size}, 1] on rank 0 but [{size}, 2] on "
        "rank {odd}.",
    ),
    "shape of reducescatter": (
        lambda odd: hvd.reducescatter(np.ones(3 if odd else 4), name="x"),
        "Mismatched REDUCESCATTER tensor shapes: tensor 'reducescatter.x' has shape [4] on rank 0 but [3] on "
        "rank {odd}.",
    ),
    "prescale": (
        lambda odd: hvd.allreduce(np.ones(3), prescale_factor=2 if odd else 1, name="x"),
        "Mismatched prescale and/or postscale factors: tensor 'allreduce.x' has prescale 1 and postscale 1 on rank 0 "
        "but prescale 2 and postscale 1 on rank {odd}.",
    ),
    "postscale": (
        lambda odd: hvd.reducescatter(np.ones(3), postscale_factor=0.5 if odd else 1, name="x"),
        "Mismatched prescale and/or postscale factors: tensor 'reducescatter.x' has prescale 1 and postscale 1 on "
        "rank 0 but prescale 1 and postscale 0.5 on rank {odd}.",
    ),
    "op": (
        lambda odd: hvd.allreduce(np.ones(3), op=hvd.Max if odd else hvd.Sum, name="x"),
        "Mismatched reduction operation: tensor 'allreduce.x' is reduced by SUM on rank 0 but MAX on rank {odd}.",
    ),
    "average": (
        lambda odd: hvd.allreduce(np.ones(3), op=hvd.Sum if odd else hvd.Average, name="x"),
        "Mismatched reduction operation: tensor 'allreduce.x' is reduced by AVERAGE on rank 0 but SUM on rank {odd}.",
    ),
    "root": (
        lambda odd: hvd.broadcast(np.ones(3), 1 if odd else 0, name="x"),
        "Mismatched BROADCAST root ranks: tensor 'broadcast.x' has root rank 0 on rank 0 but 1 on rank {odd}.",
    ),
    "shape in a group": (
        lambda odd: hvd.grouped_allreduce([np.ones(2), np.ones(3 if odd else 4)], name="g"),
        "Mismatched ALLREDUCE tensor shapes: tensor 'grouped_allreduce.g_2of2' has shape [4] on rank 0 but [3] on "
        "rank {odd}.",
    ),
    "dtype comes first": (
        lambda odd: hvd.allreduce(
            np.ones(3, "f8") if odd else np.ones(4, "f4"), op=hvd.Max if odd else hvd.Sum, name="x"
        ),
        "Mismatched data types:",
    ),
    "shape comes before factors and op": (
        lambda odd: hvd.allreduce(
            np.ones(3 if odd else 4), op=hvd.Max if odd else hvd.Sum, prescale_factor=2 if odd else 1, name="x"
        ),
        "Mismatched ALLREDUCE tensor shapes:",
    ),
    "factors come before op": (
        lambda odd: hvd.allreduce(
            np.ones(4), op=hvd.Max if odd else hvd.Sum, prescale_factor=2 if odd else 1, name="x"
        ),
        "Mismatched prescale and/or postscale factors:",
    ),
}


@on_all_ranks("shm2", "tcp2")
def test_factors_that_are_no_numbers_are_no_disagreement():
    # The first call describes the tensor in full, the second one sends its cache slot.
    for factor in (np.nan, -np.nan) if hvd.rank() else (np.nan, np.nan):
        assert np.isnan(hvd.allreduce(np.ones(3), prescale_factor=factor, name="nan")).all()
        assert np.isnan(hvd.reducescatter(np.ones(4), postscale_factor=factor, name="nan")).all()
        fused = [hvd.allreduce_async(np.ones(3), postscale_factor=factor, name=f"nan {part}") for part in "ab"]
        assert all(np.isnan(hvd.synchronize(handle)).all() for handle in fused)
    check_engine_works()


NAMED = {
    "allreduce": lambda name: hvd.allreduce(np.ones(3), name=name),
    "allgather": lambda name: hvd.allgather(np.ones(3), name=name),
    "broadcast": lambda name: hvd.broadcast(np.ones(3), 0, name=name),
    "alltoall": lambda name: hvd.alltoall(np.ones(4), name=name),
    "reducescatter": lambda name: hvd.reducescatter_async(np.ones(4), name=name),
    "grouped_allreduce": lambda name: hvd.grouped_allreduce([np.ones(3)], name=name),
    "broadcast_object": lambda name: hvd.broadcast_object(1, 0, name=name),
}


@pytest.mark.parametrize("call", NAMED)
@on_all_ranks("shm2")
def test_names_that_no_other_rank_could_be_told(call):
    for name in ("a\ud800b", "a\udcff", "a\0b"):
        with pytest.raises(ValueError, match=r"A tensor's name must be a string.* not '\w+\.a"):
            NAMED[call](name)
    NAMED[call]("\u00e4 \U0001f600\n$(x)")
    check_engine_works()


@pytest.mark.parametrize("mistake", MISMATCHES)
@on_all_ranks(*SEVERAL)
def test_ranks_that_disagree(mistake):
    call, text = MISMATCHES[mistake]
    texts = []
    for _ in range(2):  # twice, because an error must neither stick to the name nor be lost in a cache
        with pytest.raises(hvd.HorovodInternalError) as raised:
            call(odd_one_out())
        assert isinstance(raised.value, hvd.HorovodMismatchError)
        assert str(raised.value).startswith(text.format(odd=hvd.size() - 1, size=hvd.size())), str(raised.value)
        texts.append(str(raised.value))
        call(False)  # all ranks agree here
    check_engine_works()
    return texts


@on_all_ranks(*SEVERAL)
def test_a_mismatch_after_many_agreements():
    """The mismatched tensor's name is in the response cache by then."""
    for _ in range(5):
        hvd.allreduce(np.ones(8, np.float32), name="cached")
    with pytest.raises(hvd.HorovodMismatchError, match="Mismatched ALLREDUCE tensor shapes"):
        hvd.allreduce(np.ones(9 if odd_one_out() else 8, np.float32), name="cached")
    with pytest.raises(hvd.HorovodMismatchError, match="Mismatched reduction operation"):
        hvd.allreduce(np.ones(8, np.float32), op=hvd.Min if odd_one_out() else hvd.Max, name="cached")
    check_equal(hvd.allreduce(np.ones(8, np.float32), name="cached"), np.ones(8, np.float32))


@on_all_ranks(*SEVERAL)
def test_operations_of_different_kinds_under_one_name():
    """The framework APIs put the kind into the name, so only direct calls of the engine can cause this error."""
    from horovod._engine import EngineCall, EngineError, TensorLocation

    array, world = np.ones(4), default_context.world
    kind = BROADCAST if odd_one_out() else ALLREDUCE
    tensor = TensorLocation(ID_BY_NAME["float64"], array.shape, array.ctypes.data, array.ctypes.data)
    handle = world.submit(0, "same", EngineCall(kind, root=0), tensor)
    with pytest.raises(EngineError, match="Mismatched operations: tensor 'same' is submitted to ALLREDUCE on rank 0"):
        world.wait(handle)
    world.release(handle)
    check_engine_works()


@on_all_ranks(*SEVERAL)
def test_only_the_tensor_in_error_fails():
    bad = hvd.allreduce_async(np.ones(3 if odd_one_out() else 4), name="bad")
    good = [hvd.allreduce_async(np.ones(50), op=hvd.Sum, name=f"good{index}") for index in range(10)]
    for handle in good:
        check_equal(hvd.synchronize(handle), np.full(50, float(hvd.size())))
    with pytest.raises(hvd.HorovodMismatchError, match="Mismatched"):
        hvd.synchronize(bad)
    assert hvd.synchronize(bad) is None
    check_engine_works()


@on_all_ranks(*SEVERAL)
def test_a_name_that_is_still_pending():
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(3), op=hvd.Sum, name="twice")
        with pytest.raises(ValueError, match="twice"):
            hvd.allreduce_async(np.ones(3), op=hvd.Sum, name="twice")
        with pytest.raises(ValueError, match="twice"):
            hvd.allreduce(np.ones(3), op=hvd.Sum, name="twice")
        hvd.barrier()
    else:
        hvd.barrier()  # the other ranks begin only now, so the first operation was pending on rank 0 until here
        handle = hvd.allreduce_async(np.ones(3), op=hvd.Sum, name="twice")
    check_equal(hvd.synchronize(handle), np.full(3, float(hvd.size())))
    check_equal(hvd.allreduce(np.ones(3), op=hvd.Sum, name="twice"), np.full(3, float(hvd.size())))


@on_all_ranks()
def test_mistakes_that_a_rank_sees_by_itself():
    size = hvd.size()
    mistakes = [
        (lambda: hvd.alltoall(np.ones(3), splits=[1] * (size + 1)), "one split for each"),
        (lambda: hvd.alltoall(np.ones(3), splits=[4] + [0] * (size - 1)), "more than the tensor's 3 rows"),
        (lambda: hvd.alltoall(np.ones(3), splits=[-1] + [1] * (size - 1)), "cannot be negative"),
        (lambda: hvd.alltoall(np.ones(3), splits=[[1]] * size), "one-dimensional"),
        (lambda: hvd.alltoall(np.ones(3), splits=[1.0] * size), "integers"),
        (lambda: hvd.alltoall(np.ones(()), splits=[0] * size), "not a scalar"),
        (lambda: hvd.allgather(np.ones(())), "not a scalar"),
        (lambda: hvd.reducescatter(np.ones(())), "not a scalar"),
        (lambda: hvd.broadcast(np.ones(3), size), f"root rank {size} is not among"),
        (lambda: hvd.broadcast(np.ones(3), -1), "root rank -1 is not among"),
        (lambda: hvd.allreduce(np.ones(3), op=17), "not a reduce operation"),
        (lambda: hvd.allreduce(np.ones(3), average=True, op=hvd.Sum), "not both"),
        (lambda: hvd.allreduce(np.ones(3, "c8")), "not supported"),
        (lambda: hvd.allreduce(np.ones((4, 4)).T[1:]), "not C-contiguous"),
        (lambda: hvd.allreduce(np.ones(3).astype(">f8")), "byte order"),
        (lambda: hvd.allreduce_([1, 2]), "numpy.ndarray"),
        (lambda: hvd.allreduce(np.ones(3), process_set=hvd.ProcessSet([0])), "not registered"),
    ]
    if size > 1:
        mistakes.append((lambda: hvd.alltoall(np.ones(size + 1)), "evenly"))
    for call, text in mistakes:
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(hvd.HorovodInternalError, match="Average and Sum, not Max"):
        hvd.reducescatter(np.ones(3), op=hvd.Max)
    check_engine_works()


@on_all_ranks()
def test_unnamed_operations_still_match_after_local_mistakes_on_some_ranks():
    """A call that was refused on one rank must not change the numbers of later unnamed operations."""
    if hvd.rank() == 0:
        for mistake in ({"op": 17}, {"process_set": hvd.ProcessSet([0])}):
            with pytest.raises(ValueError, match="not a reduce operation|not registered"):
                hvd.allreduce(np.ones(3), **mistake)
        with pytest.raises(ValueError, match="root rank"):
            hvd.broadcast(np.ones(3), 99)
        with pytest.raises(ValueError, match="more than"):
            hvd.alltoall(np.ones(3), splits=[4] + [0] * (hvd.size() - 1))
    check_equal(hvd.allreduce(np.ones(3), op=hvd.Sum), np.full(3, float(hvd.size())))
