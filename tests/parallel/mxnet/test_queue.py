# SPDX-License-Identifier: Apache-2.0
"""Operations wait in MXNet's queue, not in the caller; dependent operations wait for them and raise their errors."""

import gc
from concurrent import futures

import numpy as np
import pytest
from harness.mxnet_arrays import arange, mx, on_mxnet_ranks

import horovod.mxnet as hvd
import horovod.numpy as hvd_numpy

TWO_AND_FOUR = ("shm2", "shm4")


@on_mxnet_ranks(*TWO_AND_FOUR)
def test_a_call_does_not_wait_for_the_other_ranks():
    """Rank 0 calls before a barrier, the other ranks after it: a blocking call would never reach the barrier."""
    if hvd.rank() == 0:
        total = hvd.allreduce(mx.nd.ones(5), op=hvd.Sum, name="early")
        doubled = total * 2
    hvd_numpy.barrier()
    if hvd.rank() != 0:
        doubled = hvd.allreduce(mx.nd.ones(5), op=hvd.Sum, name="early") * 2
    assert doubled.asnumpy().tolist() == [2 * hvd.size()] * 5


@on_mxnet_ranks(*TWO_AND_FOUR)
def test_ranks_may_start_in_different_orders():
    names = [f"tensor.{index}" for index in range(20)]
    order = names if hvd.rank() % 2 else list(reversed(names))
    results = {name: hvd.allreduce(mx.nd.ones(4) * names.index(name), op=hvd.Sum, name=name) for name in order}
    for name in names:
        assert results[name].asnumpy().tolist() == [names.index(name) * hvd.size()] * 4


@on_mxnet_ranks(*TWO_AND_FOUR)
def test_unnamed_ones_match_by_the_order_of_calls():
    """Unnamed operations match in any order in which MXNet starts them."""
    results = [hvd.allreduce(mx.nd.ones(3) * index, op=hvd.Sum, priority=index % 7) for index in range(40)]
    assert [result.asnumpy()[0] for result in results] == [index * hvd.size() for index in range(40)]


@on_mxnet_ranks(*TWO_AND_FOUR)
def test_inputs_are_computed_first_and_results_are_used_after():
    """Queue a chain of MXNet's operations and ours before the first has finished, and drop intermediate arrays."""
    value = mx.nd.ones((64, 64)) / 64
    for _ in range(30):
        value = hvd.allreduce(mx.nd.dot(value, value) * (hvd.rank() + 1), op=hvd.Sum)
        value = value * (64.0 / hvd.size() / (hvd.size() + 1) * 2) / 64
        gc.collect()
    np.testing.assert_allclose(value.asnumpy(), np.full((64, 64), 1 / 64), rtol=1e-4)


@on_mxnet_ranks(*TWO_AND_FOUR)
def test_one_that_is_held_up_holds_up_no_other():
    """On rank 1 the first operation needs the result of the last, so on rank 0 the last must not wait for the first."""
    one = mx.nd.ones(3)
    if hvd.rank() == 1:
        middle = hvd.allreduce(one, op=hvd.Sum, name="middle")
        last = hvd.allreduce(middle, op=hvd.Sum, name="last")
        first = hvd.allreduce(last, op=hvd.Sum, name="first")
    else:
        first = hvd.allreduce(one * hvd.size() ** 2, op=hvd.Sum, name="first")
        middle = hvd.allreduce(one, op=hvd.Sum, name="middle")
        last = hvd.allreduce(middle, op=hvd.Sum, name="last")
    assert first.asnumpy().tolist() == [hvd.size() ** 3] * 3


@on_mxnet_ranks(*TWO_AND_FOUR)
def test_views_are_reduced_where_they_lie():
    whole = arange(6, 4)
    expected = whole.asnumpy()
    expected[2:4] *= hvd.size()
    expected[5] = expected[5] * hvd.size()
    hvd.grouped_allreduce_([whole[2:4], whole[5:6]], op=hvd.Sum)
    np.testing.assert_array_equal(whole.asnumpy(), expected)


@on_mxnet_ranks("shm2")
def test_results_of_convolutions():
    """Results of convolutions may have a memory layout of MXNet's choice."""
    images = arange(2, 16, 8, 8) / 100
    weight = arange(16, 16, 3, 3) / 1000
    convolved = mx.nd.Convolution(images, weight, kernel=(3, 3), num_filter=16, no_bias=True)
    expected = mx.nd.Convolution(images, weight, kernel=(3, 3), num_filter=16, no_bias=True).asnumpy()
    np.testing.assert_allclose(hvd.allreduce(convolved, op=hvd.Sum).asnumpy(), expected * hvd.size(), rtol=1e-6)
    np.testing.assert_allclose(hvd.allgather(convolved).asnumpy(), np.concatenate([expected] * hvd.size()), rtol=1e-6)
    np.testing.assert_allclose(hvd.reducescatter(convolved).asnumpy(), expected[hvd.rank() : hvd.rank() + 1], rtol=1e-6)


@on_mxnet_ranks(*TWO_AND_FOUR)
def test_a_mismatch_is_raised_where_the_result_is_used_and_harms_nothing_else():
    wrong = hvd.allreduce(mx.nd.ones(3 + hvd.rank()), name="shapes")
    good = hvd.allreduce(mx.nd.ones(3), op=hvd.Sum, name="good")
    with pytest.raises(
        hvd.HorovodMismatchError, match="^Mismatched allreduce tensor shapes|^Mismatched ALLREDUCE"
    ) as it:
        (wrong + 1).asnumpy()
    assert it.value.operation == "allreduce.shapes"
    assert good.asnumpy().tolist() == [hvd.size()] * 3
    assert hvd.allreduce(mx.nd.ones(2), op=hvd.Sum, name="shapes").asnumpy().tolist() == [hvd.size()] * 2
    # waitall reports an error even if no operation has used the result; after that no error is left.
    hvd.broadcast(mx.nd.ones(2), root_rank=hvd.rank(), name="roots")
    with pytest.raises(hvd.HorovodMismatchError, match="root ranks"):
        mx.nd.waitall()
    mx.nd.waitall()


@on_mxnet_ranks(*TWO_AND_FOUR)
def test_allgather_and_alltoall_raise_a_mismatch_in_the_call():
    me, size = hvd.rank(), hvd.size()
    wrong = mx.nd.ones((size, 2 + me))
    other_dtype = mx.nd.ones((size, 2), dtype="float64" if me else "float32")
    for operation in (hvd.allgather, hvd.alltoall, lambda tensor, name: hvd.grouped_allgather([tensor, tensor], name)):
        with pytest.raises(hvd.HorovodMismatchError, match="Mismatched .* tensor shapes") as it:
            operation(wrong, name="shapes")
        assert it.value.operation.endswith(".shapes")
        with pytest.raises(RuntimeError, match="Mismatched data types"):
            operation(other_dtype, name="dtypes")
    with pytest.raises(hvd.HorovodMismatchError, match="different lengths"):
        hvd.grouped_allgather([mx.nd.ones(2)] * (1 + me), name="lengths")
    mx.nd.waitall()  # no error is left to report
    # The number of dimensions differs between ranks.
    uneven = mx.nd.ones((size, 1 + me)) if me == 0 else mx.nd.ones((size, 1, 1))
    with pytest.raises(RuntimeError, match="Mismatched"):
        hvd.alltoall(uneven, splits=[1] * size, name="dimensions")
    rows = hvd.allgather(mx.nd.ones((1 + me, 2)), name="shapes")
    assert rows.shape == (size * (size + 1) // 2, 2)


@on_mxnet_ranks("shm2")
def test_a_name_in_flight_is_refused():
    if hvd.rank() == 1:
        hvd_numpy.barrier()
        assert hvd.allreduce(mx.nd.ones(1), op=hvd.Sum, name="twice").asscalar() == 2
        return
    results = [hvd.allreduce(mx.nd.ones(1), op=hvd.Sum, name="twice") for _ in range(2)]
    with futures.ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(result.asscalar) for result in results]  # MXNet chooses which one comes second
        (refused,), (other,) = futures.wait(waits, return_when=futures.FIRST_COMPLETED)
        hvd_numpy.barrier()
        assert other.result() == 2
        with pytest.raises(ValueError, match="twice") as it:
            refused.result()
        assert isinstance(it.value, mx.MXNetError)


@on_mxnet_ranks("shm2")
def test_what_can_be_refused_at_once_is():
    ones = mx.nd.ones((3, 2))
    with pytest.raises(ValueError, match="not ndarray"):
        hvd.allreduce(np.ones(3))
    with pytest.raises(ValueError, match="dense"):
        hvd.allreduce(ones.tostype("row_sparse"))
    with pytest.raises(AssertionError, match="Adasum"):
        hvd.allreduce(ones, op=hvd.Adasum)
    with pytest.raises(AssertionError, match="Average and Sum"):
        hvd.reducescatter(ones, op=hvd.Max)
    with pytest.raises(ValueError, match="either op or"):
        hvd.allreduce(ones, average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="root rank 7"):
        hvd.broadcast(ones, 7)
    for error in (ValueError, mx.MXNetError, RuntimeError):
        with pytest.raises(error, match="one split for each"):
            hvd.alltoall(ones, splits=[3])
        with pytest.raises(error, match="3 rows do not among"):
            hvd.alltoall(ones)
        with pytest.raises(error, match="not registered"):
            hvd.alltoall(ones, process_set=hvd.ProcessSet([0, 1]))
    with pytest.raises(ValueError, match="at least one tensor"):
        hvd.grouped_allreduce([])
    with mx.util.np_shape(True), pytest.raises(ValueError, match="scalar"):
        hvd.reducescatter(mx.np.array(1.0))


@on_mxnet_ranks("shm2")
def test_leaving_and_coming_back():
    """A queued operation still runs during shutdown; later calls raise an error; a new world works."""
    if hvd.rank() == 0:
        hvd.allreduce(mx.nd.ones(2), name="last words")
    else:
        hvd_numpy.allreduce(np.ones(2, np.float32), name="last words")
    hvd.shutdown()
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match="init"):
        hvd.allreduce(mx.nd.ones(2))
    hvd.init()
    assert hvd.allreduce(mx.nd.ones(2), op=hvd.Sum).asnumpy().tolist() == [2, 2]
