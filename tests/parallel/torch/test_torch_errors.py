# SPDX-License-Identifier: Apache-2.0
"""Mistakes with torch tensors, handles, process sets and join, and signals that interrupt a wait."""

import threading
import time

import pytest
import torch
from harness.arrays import odd_one_out
from harness.sets import process_sets
from harness.tensors import check_tensor
from harness.waiting import sigint_after_a_moment
from harness.worlds import on_all_ranks
from testkit.speed import patience

import horovod.torch as hvd

WORLDS = ("shm2", "shm4")


def check_engine_works():
    check_tensor(hvd.allreduce(torch.ones(400), op=hvd.Sum, name="after"), torch.full((400,), float(hvd.size())))


@on_all_ranks("one", *WORLDS)
def test_mistakes_that_a_rank_sees_by_itself():
    sparse = torch.ones(2, 2).to_sparse()
    elsewhere = torch.empty(3, device="meta")
    learnt = torch.ones(2, requires_grad=True)
    mistakes = [
        (lambda: hvd.allreduce(torch.ones(2), name="a\ud800b"), "name must be a string"),
        (lambda: hvd.allreduce(learnt, name="a\0b"), "name must be a string"),
        (lambda: hvd.broadcast_parameters({"a\udcff": torch.ones(2)}, 0), "name must be a string"),
        (lambda: hvd.allreduce(torch.ones(4, 4).t()[1:]), r"not contiguous; pass tensor.contiguous\(\)"),
        (lambda: hvd.allreduce_(torch.ones(4, 4)[:, 1]), "not contiguous"),
        (lambda: hvd.grouped_allgather([torch.ones(2), torch.ones(4, 4)[:, 1]]), "not contiguous"),
        (lambda: hvd.broadcast(torch.ones(4, 4)[:, 1], 0), "not contiguous"),
        (lambda: hvd.alltoall(torch.ones(4, 4)[:, 1]), "not contiguous"),
        (lambda: hvd.allreduce(sparse), "dense tensor.*sparse_allreduce_async"),
        (lambda: hvd.allreduce(elsewhere), "device meta are not supported"),
        (lambda: hvd.grouped_allreduce([elsewhere]), "device meta are not supported"),
        (lambda: hvd.allreduce([1.0, 2.0]), "Expected a torch.Tensor, not list"),
        (lambda: hvd.grouped_allreduce([1.0]), "Expected a torch.Tensor, not float"),
        (lambda: hvd.allreduce(torch.ones(3, dtype=torch.complex64)), "complex64 is not supported; the supported"),
        (lambda: hvd.grouped_allreduce([]), "at least one tensor"),
        (lambda: hvd.allgather(torch.tensor(1.0)), "not a scalar"),
        (lambda: hvd.reducescatter(torch.tensor(1.0)), "not a scalar"),
        (lambda: hvd.broadcast(torch.ones(2), 99), "root rank 99"),
        (lambda: hvd.allreduce(torch.ones(2), process_set=hvd.ProcessSet([0])), "not registered"),
        (lambda: hvd.allreduce(torch.ones(3), average=True, op=hvd.Sum), "not both"),
        (lambda: hvd.sparse_allreduce_async(torch.ones(3), "x", hvd.Sum), "sparse_coo, not torch.strided"),
        (lambda: hvd.sparse_allreduce_async(sparse, "x", hvd.Max), "only average and sum"),
    ]
    for call, text in mistakes:
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(RuntimeError, match="on one device, but these are on cpu, meta; make one group for each"):
        hvd.grouped_allreduce([torch.ones(3), elsewhere])
    with pytest.raises(hvd.HorovodInternalError, match="Average and Sum, not Max"):
        hvd.reducescatter(torch.ones(3), op=hvd.Max)
    check_engine_works()


@on_all_ranks(*WORLDS)
def test_complex_parameter_is_named():
    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=[("mixer", parameter)])
    with pytest.raises(ValueError, match="'mixer' cannot be reduced: torch.complex64 is not.*view_as_complex"):
        parameter.abs().sum().backward()
    del optimizer  # its hooks reduce, so it had to live until here
    check_engine_works()


@on_all_ranks(*WORLDS)
def test_ranks_that_disagree():
    mistakes = [
        (
            lambda odd: hvd.allreduce(torch.ones(3, dtype=torch.float64 if odd else torch.float32), name="x"),
            "data types",
        ),
        (lambda odd: hvd.allreduce(torch.ones(3 if odd else 4), name="x"), "ALLREDUCE tensor shapes"),
        (
            lambda odd: hvd.allreduce(torch.ones(3, requires_grad=odd), op=hvd.Max if odd else hvd.Sum, name="x"),
            "reduction",
        ),
        (lambda odd: hvd.broadcast_(torch.ones(3), int(odd), name="x"), "BROADCAST root ranks"),
    ]
    for call, text in mistakes:
        with pytest.raises(hvd.HorovodMismatchError, match=f"Mismatched {text}"):
            call(odd_one_out())
        call(False)
    handle = hvd.allgather_async(torch.ones(2, 3 if odd_one_out() else 4), name="y")
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched ALLGATHER tensor shapes"):
        hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None
    check_engine_works()


@on_all_ranks(*WORLDS)
def test_handles():
    tensor = torch.ones(4)
    handle = hvd.allreduce_async(tensor, op=hvd.Sum)
    assert isinstance(handle, int)
    while not hvd.poll(handle):
        pass
    check_tensor(hvd.synchronize(handle), torch.full((4,), float(hvd.size())))
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError, match="cleared"):
        hvd.poll(handle)
    handles = [hvd.allreduce_async(torch.full((500,), float(index)), op=hvd.Sum) for index in range(20)]
    trash = [torch.full((500,), -1.0) for _ in range(50)]  # would reuse the memory of inputs that were freed too early
    for index, handle in enumerate(handles):
        check_tensor(hvd.synchronize(handle), torch.full((500,), float(index * hvd.size())))
    assert len(trash) == 50


@on_all_ranks(*WORLDS)
def test_a_name_that_is_still_pending():
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="twice")
        with pytest.raises(ValueError, match="twice"):
            hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="twice")
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="twice")
    check_tensor(hvd.synchronize(handle), torch.full((3,), float(hvd.size())))


@on_all_ranks("shm4")
def test_process_sets():
    with process_sets([0, 2], [1, 3]) as sets:
        mine, other = (sets[hvd.rank() % 2], sets[1 - hvd.rank() % 2])
        check_tensor(hvd.allgather(torch.tensor([hvd.rank()]), process_set=mine), torch.tensor(mine.ranks))
        tensor = torch.ones(2, requires_grad=True)
        result = hvd.allreduce(tensor * hvd.rank(), op=hvd.Sum, process_set=mine)
        check_tensor(result, torch.full((2,), float(sum(mine.ranks))))
        result.sum().backward()
        check_tensor(tensor.grad, torch.full((2,), 2.0 * hvd.rank()))
        parts = hvd.grouped_reducescatter([torch.ones(2)], op=hvd.Sum, process_set=mine)
        check_tensor(parts[0], torch.full((1,), 2.0))
        root = torch.full((2,), float(hvd.rank()), requires_grad=True)
        hvd.broadcast(root, mine.ranks[1], process_set=mine).sum().backward()
        check_tensor(root.grad, torch.full((2,), float(hvd.rank() == mine.ranks[1])))
        gathered = torch.ones(hvd.rank() + 1, requires_grad=True)
        (hvd.allgather(gathered, process_set=mine) * 2).sum().backward()
        check_tensor(gathered.grad, torch.full((hvd.rank() + 1,), 2.0))
        hvd.barrier(process_set=mine)
        with pytest.raises(ValueError, match="not a member"):
            hvd.allreduce(torch.ones(2), process_set=other)
        with pytest.raises(ValueError, match="root rank"):
            hvd.broadcast(torch.ones(2), other.ranks[0], process_set=mine)
        with pytest.raises(NotImplementedError, match="global process set"):
            hvd.allreduce(torch.ones(2), op=hvd.Adasum, process_set=mine)


@on_all_ranks(*WORLDS)
def test_join():
    for step in range(hvd.rank()):
        present = hvd.size() - 1 - step
        check_tensor(hvd.allreduce(torch.ones(3), op=hvd.Sum, name=f"step{step}"), torch.full((3,), float(present)))
        if step == 0:
            with pytest.raises(hvd.HorovodInternalError, match="has joined"):
                hvd.allgather(torch.ones(3), name="refused")
    assert hvd.join(device=-1) == hvd.size() - 1
    check_engine_works()


@on_all_ranks(*WORLDS)
def test_a_signal_breaks_synchronize():
    """The last rank calls only after the other ranks have been interrupted."""
    tensor = torch.ones(3)
    if odd_one_out():
        hvd.barrier()
        handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="late")
    else:
        handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="late")
        with pytest.raises(KeyboardInterrupt), sigint_after_a_moment() as sent:
            hvd.synchronize(handle)
        took = time.monotonic() - sent[0]
        hvd.barrier()
        assert took < patience(10), f"{took} s"
    assert hvd.synchronize(handle) is tensor  # the interrupted handle still works
    check_tensor(tensor, torch.full((3,), float(hvd.size())))


@on_all_ranks(*WORLDS)
def test_other_threads_run_while_one_waits():
    if odd_one_out():
        hvd.barrier()
        hvd.allreduce(torch.ones(3), name="held")
        return
    handle = hvd.allreduce_async(torch.ones(3), name="held")
    waiting = threading.Thread(target=hvd.synchronize, args=(handle,))
    waiting.start()
    hvd.barrier()  # would never return if the waiting thread held the interpreter
    waiting.join()


@on_all_ranks("shm2")
def test_before_init_and_after_shutdown():
    hvd.shutdown()
    with pytest.raises(ValueError, match=r"hvd\.init\(\)"):
        hvd.rank()
    for call in (
        lambda: hvd.allreduce(torch.ones(3)),
        lambda: hvd.allreduce_async_(torch.ones(3)),
        lambda: hvd.grouped_allgather([torch.ones(3)]),
        lambda: hvd.broadcast(torch.ones(3, requires_grad=True), 0),
        hvd.barrier,
        hvd.join,
    ):
        with pytest.raises(hvd.HorovodInternalError, match=r"hvd\.init\(\)"):
            call()
    hvd.init()
    assert hvd.allreduce_async(torch.ones(3)) == 1  # handles and names are numbered from the start
    hvd.synchronize(1)
    check_engine_works()
