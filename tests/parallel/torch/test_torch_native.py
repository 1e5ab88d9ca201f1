# SPDX-License-Identifier: Apache-2.0
"""Ordinary PyTorch calls run natively, unusual ones through Python; results, errors and handles must not differ.

Each test also runs as with an older torch, which has no table of functions for other libraries.
"""

import contextlib

import pytest
import torch
from harness.tensors import check_tensor
from harness.waiting import sigint_after_a_moment
from harness.worlds import on_all_ranks

import horovod.torch as hvd
from horovod._engine import ArrayCalls
from horovod.common.context import default_context
from horovod.common.handles import translate
from horovod.torch import mpi_ops
from horovod.torch.adapter import ID_BY_DTYPE, plain_tensors

WITHOUT_TABLE = ArrayCalls(plain_tensors(None), default_context.handles.plain, translate)
NATIVE = {"as torch offers": mpi_ops._native, "attributes": WITHOUT_TABLE}
both_ways = pytest.mark.parametrize("native", NATIVE)
Sum = hvd.Sum


@contextlib.contextmanager
def calls(native):
    """Use these native calls in horovod.torch, and count the results that they return."""
    before = mpi_ops._native
    mpi_ops._native = counting = Counting(NATIVE[native])
    try:
        yield counting
    finally:
        mpi_ops._native = before


class Counting:
    def __init__(self, native):
        self.native, self.taken = native, 0

    def __getattr__(self, name):
        def call(*arguments):
            result = getattr(self.native, name)(*arguments)
            self.taken += result is not None
            return result

        return call


def native_way(data):
    return data.clone()


def through_python(data):
    """Return a copy as a parameter, which the native path leaves to Python."""
    return torch.nn.Parameter(data.clone(), requires_grad=False)


CALLS = {
    "allreduce": lambda x, name: hvd.allreduce(x, name=name, op=Sum),
    "allreduce with factors": lambda x, name: hvd.allreduce(x, name=name, prescale_factor=2.0, postscale_factor=0.5),
    "allreduce in place": lambda x, name: hvd.allreduce_(x, name=name, op=hvd.Max),
    "allgather": lambda x, name: hvd.allgather(x, name=name),
    "broadcast": lambda x, name: hvd.broadcast(x, hvd.size() - 1, name=name),
    "broadcast in place": lambda x, name: hvd.broadcast_(x, 0, name=name),
    "alltoall": lambda x, name: hvd.alltoall(x, name=name),
    "alltoall with splits": lambda x, name: hvd.alltoall(x, [1] * hvd.size(), name=name),
    "reducescatter": lambda x, name: hvd.reducescatter(x, name=name, op=Sum),
    "allreduce async": lambda x, name: hvd.synchronize(hvd.allreduce_async(x, name=name)),
    "allreduce in place async": lambda x, name: hvd.synchronize(hvd.allreduce_async_(x, name=name)),
    "allgather async": lambda x, name: hvd.synchronize(hvd.allgather_async(x, name=name)),
    "broadcast async": lambda x, name: hvd.synchronize(hvd.broadcast_async(x, 0, name=name)),
    "broadcast in place async": lambda x, name: hvd.synchronize(hvd.broadcast_async_(x, 0, name=name)),
    "alltoall async": lambda x, name: hvd.synchronize(hvd.alltoall_async(x, name=name)),
    "reducescatter async": lambda x, name: hvd.synchronize(hvd.reducescatter_async(x, name=name, op=Sum)),
}


def flat(result):
    """Return the dtypes, shapes and values of a result, so that results can be compared."""
    tensors = result if isinstance(result, tuple) else (result,)
    for tensor in tensors:
        assert (tensor.is_contiguous(), tensor.is_cpu, tensor.requires_grad) == (True, True, False)
    return [(tensor.dtype, tensor.shape, tensor.tolist()) for tensor in tensors]


@both_ways
@on_all_ranks("one", "shm2", "shm4")
def test_ranks_may_go_either_way(native):
    """Calls without a name work too: each takes exactly one number, on either path."""
    for call in CALLS.values():
        data = torch.arange(12.0).reshape(4, 3) + 100 * hvd.rank()
        expected = flat(call(through_python(data), "x"))
        mixed = through_python if hvd.rank() % 2 else native_way
        for name in ("x", None, "", None):
            with calls(native) as counting:
                for way in (through_python, mixed, native_way):
                    assert flat(call(way(data), name)) == expected
            assert counting.taken == (1 if mixed is through_python else 2)


@both_ways
@on_all_ranks("shm2")
def test_every_dtype(native):
    for dtype in ID_BY_DTYPE:
        tensor = torch.arange(8, dtype=torch.uint8).view(dtype) if dtype.itemsize == 1 else torch.ones(8, dtype=dtype)
        with calls(native):
            results = (
                hvd.broadcast(tensor, 1, name="x"),
                hvd.allgather(tensor, name="x")[:8],
                hvd.alltoall(tensor, [8, 0] if hvd.rank() else [0, 8], name="x"),
            )
        for result in (*results[:2], results[2][0]):
            assert result.dtype == dtype
            assert torch.equal(result.view(torch.uint8), tensor.view(torch.uint8)), (dtype, result)
        assert results[2][1].dtype == torch.int32


@both_ways
@on_all_ranks("one", "shm2")
def test_shapes_at_the_edge(native):
    with calls(native) as counting:
        check_tensor(hvd.allreduce(torch.tensor(2.0), op=Sum), torch.tensor(2.0 * hvd.size()))
        for empty in (torch.empty(0), torch.empty(0, 2), torch.empty(3, 0)):
            for result in (hvd.allreduce(empty), hvd.allreduce_(empty), hvd.broadcast(empty, 0)):
                check_tensor(result, empty)
            check_tensor(hvd.allgather(empty), torch.cat([empty] * hvd.size()))
            check_tensor(hvd.alltoall(empty, [0] * hvd.size())[0], empty[:0])
        assert counting.taken == 16
        many = hvd.allreduce(torch.ones([1] * 70), op=Sum)  # more dimensions than NumPy supports
        assert (many.dim(), many.item()) == (70, hvd.size())
        assert counting.taken == 16


@both_ways
@on_all_ranks("one", "shm2")
def test_what_autograd_records_is_left_to_it(native):
    tensor = torch.ones(4, requires_grad=True)
    with calls(native) as counting:
        results = [
            hvd.allreduce(tensor, op=Sum),
            hvd.allgather(tensor),
            hvd.broadcast(tensor, 0),
            hvd.alltoall(tensor),
            hvd.reducescatter(tensor, op=Sum),
        ]
        assert counting.taken == 0
        assert all(result.grad_fn is not None for result in results)
        sum(result.sum() for result in results).backward()
        with torch.no_grad():
            assert hvd.allreduce(tensor).grad_fn is None
        with torch.inference_mode():
            assert hvd.allgather(tensor).is_inference()
        hvd.allreduce_(tensor)
        assert not hvd.synchronize(hvd.allreduce_async(tensor)).requires_grad
        assert counting.taken == 4
    assert tensor.grad is not None
    result = hvd.allreduce(tensor.detach(), op=Sum).requires_grad_()
    (result * 2).sum().backward()
    check_tensor(result.grad, torch.full((4,), 2.0))


@both_ways
@on_all_ranks("one")
def test_whatever_is_odd_is_left_to_python(native):
    plain = {"name": None, "average": None, "op": Sum, "factor": 1.0, "member": hvd.global_process_set.native}
    numbers = hvd.global_process_set.membership
    for odd in (
        {"tensor": torch.zeros(4, 4)[:, :2]},
        {"tensor": torch.zeros(3, dtype=torch.complex64)},
        {"tensor": torch.zeros(2, 2).to_sparse()},
        {"tensor": torch.zeros(2, device="meta")},
        {"tensor": torch.nn.Parameter(torch.zeros(2))},
        {"tensor": [1.0]},
        {"tensor": None},
        {"tensor": torch.zeros(3, dtype=torch.bool), "op": hvd.Average},
        {"op": hvd.Adasum},
        {"factor": 1},
        {"average": True},
        {"name": 7},
        {"member": None},
    ):
        wanted = {"tensor": torch.zeros(3), **plain, **odd}
        reduction = (wanted["average"], wanted["op"], wanted["factor"], 1.0)
        before = numbers.full_name("allreduce", None)
        for in_place in (True, False):
            arguments = (wanted["member"], wanted["tensor"], in_place, True, wanted["name"], *reduction)
            assert NATIVE[native].allreduce(*arguments) is None, odd
        after = numbers.full_name("allreduce", None)
        assert int(after.rpartition(".")[2]) == int(before.rpartition(".")[2]) + 1, "a number was taken and not used"


@both_ways
@on_all_ranks("shm2", "shm4")
def test_splits_of_every_kind(native):
    """Member i gets i rows; no member gets the last row."""
    rows, size = hvd.size() * (hvd.size() - 1) // 2, hvd.size()
    tensor = torch.arange(2.0 * (rows + 1)).reshape(-1, 2) + 1000 * hvd.rank()
    counts = list(range(size))
    begin = hvd.rank() * (hvd.rank() - 1) // 2
    expected = [tensor[begin : begin + hvd.rank()] + 1000 * (rank - hvd.rank()) for rank in range(size)]
    with calls(native) as counting:
        for splits in (counts, tuple(counts), torch.tensor(counts, dtype=torch.int32)):
            output, received = hvd.alltoall(tensor, splits, name="x")
            check_tensor(output, torch.cat(expected))
            check_tensor(received, torch.tensor([hvd.rank()] * size, dtype=torch.int32))
        assert counting.taken == 3
        with pytest.raises(ValueError, match="must be a torch.int32 tensor"):
            hvd.alltoall(tensor, torch.tensor(counts), name="x")
        for bad in ([-1] * size, [rows + 2, *[0] * (size - 1)], [*counts, 0], [0.5] * size):
            with pytest.raises(ValueError, match="split"):
                hvd.alltoall(tensor, bad, name="x")


@both_ways
@on_all_ranks("shm2", "shm4")
def test_results_have_memory_of_their_own(native):
    tensors = [torch.full((3, 2), float(index)) for index in range(20)]
    with calls(native):
        for call in (lambda x: hvd.allgather(x), lambda x: hvd.allreduce(x), lambda x: hvd.broadcast(x, 0)):
            results = [call(tensor) for tensor in tensors]
            views = [result[1:] for result in results]
            for index, result in enumerate(results):
                result += 0.5
                check_tensor(tensors[index], torch.full((3, 2), float(index)))
            results.clear()
            trash = [torch.full((3, 2), -1.0) for _ in range(50)]  # would reuse memory that was freed too early
            for index, view in enumerate(views):
                check_tensor(view, torch.full_like(view, index + 0.5))
            assert len(trash) == 50


@both_ways
@on_all_ranks("shm2")
def test_a_signal_breaks_a_call_whose_result_the_engine_still_writes(native):
    with calls(native):
        if hvd.rank() == 0:
            with pytest.raises(KeyboardInterrupt), sigint_after_a_moment():
                hvd.allreduce(torch.ones(300), op=Sum, name="broken")
            others = [torch.full((300,), -1.0) for _ in range(200)]  # would reuse memory that was freed too early
        hvd.barrier()
        if hvd.rank() != 0:
            check_tensor(hvd.allreduce(torch.ones(300), op=Sum, name="broken"), torch.full((300,), float(hvd.size())))
        hvd.barrier()
        if hvd.rank() == 0:
            assert all(bool((other == -1).all()) for other in others)
        check_tensor(hvd.allreduce(torch.ones(3), op=Sum), torch.full((3,), float(hvd.size())))
