# SPDX-License-Identifier: Apache-2.0
"""Staging of device tensors without a device: the test decides when copies arrive; the rest works as with CUDA."""

import threading

import pytest
import torch
from harness.tensors import check_tensor
from harness.worlds import on_all_ranks

import horovod.torch as hvd
from horovod.common.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, Call
from horovod.common.context import default_context
from horovod.torch.cuda_staging import StagedCollectives

WORLDS = ("shm2", "shm4")
finish = default_context.handles.finish
add = default_context.handles.add


class Gate:
    """Stand-in for a device event: after `open`, waiting for it makes the copy that the event follows."""

    def __init__(self, copy, is_open):
        self._copy = copy
        self._opened = threading.Event()
        if is_open:
            self._opened.set()

    def open(self):
        self._opened.set()

    def synchronize(self):
        assert self._opened.wait(20)
        self._copy()


class LateStreams:
    """Streams whose copies arrive late. Until then host memory holds wrong numbers, so that early reads are noticed."""

    def __init__(self, is_open=True):
        self.is_open = is_open
        self.gates = []
        self.lifted = 0

    def host_memory(self, shape, dtype):
        return torch.full(tuple(shape), 99, dtype=dtype)

    def to_host(self, tensors):
        copies = [self.host_memory(tensor.shape, tensor.dtype) for tensor in tensors]

        def copy():
            for target, source in zip(copies, tensors, strict=True):
                target.copy_(source.detach())

        self.gates.append(Gate(copy, self.is_open))
        return copies, self.gates[-1]

    def to_device(self, results, targets, device):
        self.lifted += len(results)
        if targets is None:
            return [result.clone() for result in results]
        for target, result in zip(targets, results, strict=True):
            target.detach().copy_(result)
        return list(targets)


def mine(*shape):
    return torch.full(shape, float(hvd.rank() + 1))


def total():
    return float(sum(range(1, hvd.size() + 1)))


@on_all_ranks(*WORLDS)
def test_every_operation():
    streams = LateStreams()
    staged = StagedCollectives(default_context, streams)
    size, rank = hvd.size(), hvd.rank()
    for will_wait in (True, False):
        run = finish if will_wait else (lambda pending: hvd.synchronize(add(pending)))
        for in_place in (False, True):
            tensor = mine(3)
            result = run(staged.start(Call(ALLREDUCE, in_place=in_place), [tensor], will_wait))
            check_tensor(result, torch.full((3,), total()))
            assert (result is tensor) == in_place
            check_tensor(tensor, result if in_place else mine(3))
            tensors = [mine(2), mine(4)]
            results = run(staged.start(Call(ALLREDUCE, grouped=True, in_place=in_place), tensors, will_wait))
            for given, each in zip(tensors, results, strict=True):
                check_tensor(each, torch.full(tuple(given.shape), total()))
                assert (each is given) == in_place
            tensor = mine(3)
            result = run(staged.start(Call(BROADCAST, root=1, in_place=in_place), [tensor], will_wait))
            check_tensor(result, torch.full((3,), 2.0))
            assert (result is tensor) == in_place
        ones = torch.ones(size, 2)
        check_tensor(
            run(staged.start(Call(REDUCESCATTER), [ones], will_wait)),
            torch.full((1, 2), float(size)),
        )
        for part in run(staged.start(Call(REDUCESCATTER, grouped=True), [ones, ones], will_wait)):
            check_tensor(part, torch.full((1, 2), float(size)))
        gathered = torch.arange(size)
        own = torch.tensor([rank])
        check_tensor(run(staged.start(Call(ALLGATHER), [own], will_wait)), gathered)
        for part in run(staged.start(Call(ALLGATHER, grouped=True), [own, own], will_wait)):
            check_tensor(part, gathered)
        output, received = run(staged.start(Call(ALLTOALL), [torch.full((size,), rank)], will_wait))
        check_tensor(output, gathered)
        check_tensor(received, torch.ones(size, dtype=torch.int32))
    assert streams.lifted > 20


@on_all_ranks(*WORLDS)
def test_callers_of_asynchronous_operations_do_not_wait_for_the_device():
    streams = LateStreams(is_open=False)
    staged = StagedCollectives(default_context, streams)
    pending = [staged.start(Call(ALLREDUCE, in_place=True), [mine(3)], will_wait=False) for _ in range(3)]
    handles = [add(each) for each in pending]
    assert not any(hvd.poll(handle) for handle in handles)
    hvd.barrier()  # an operation on a host tensor overtakes the staged ones
    check_tensor(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(hvd.size())))
    for gate in streams.gates:
        gate.open()
    for handle in reversed(handles):
        check_tensor(hvd.synchronize(handle), torch.full((3,), total()))


@on_all_ranks(*WORLDS)
def test_unnamed_operations_are_numbered_at_the_call():
    """Rank 0's first operation is staged and late, the other ranks' is on the host; both must get the first number."""
    late = LateStreams(is_open=False)
    staged = StagedCollectives(default_context, late)
    if hvd.rank() == 0:
        first = add(staged.start(Call(ALLREDUCE), [mine(3)], will_wait=False))
    else:
        first = hvd.allreduce_async(mine(3), op=hvd.Sum)
    second = hvd.allreduce_async(torch.ones(5), op=hvd.Max)
    check_tensor(hvd.synchronize(second), torch.ones(5))
    for gate in late.gates:
        gate.open()
    check_tensor(hvd.synchronize(first), torch.full((3,), total()))


@on_all_ranks(*WORLDS)
def test_mistakes_are_refused_at_the_call():
    late = LateStreams(is_open=False)
    staged = StagedCollectives(default_context, late)
    handle = add(staged.start(Call(ALLREDUCE, name="twice"), [mine(3)], will_wait=False))
    for will_wait in (False, True):
        with pytest.raises(ValueError, match="'allreduce.twice' is already being processed"):
            staged.start(Call(ALLREDUCE, name="twice"), [mine(3)], will_wait)
    with pytest.raises(ValueError, match="not contiguous"):
        staged.start(Call(ALLREDUCE), [torch.ones(4, 4)[:, 1]], will_wait=False)
    with pytest.raises(ValueError, match="complex64 is not supported"):
        staged.start(Call(ALLGATHER), [torch.ones(4, dtype=torch.complex64)], will_wait=False)
    with pytest.raises(ValueError, match="root rank 99"):
        staged.start(Call(BROADCAST, root=99), [mine(3)], will_wait=False)
    with pytest.raises(ValueError, match="not registered"):
        staged.start(Call(ALLREDUCE, hvd.ProcessSet([0])), [mine(3)], will_wait=False)
    for gate in late.gates:
        gate.open()
    check_tensor(hvd.synchronize(handle), torch.full((3,), total()))
    late.is_open = True
    again = staged.start(Call(ALLREDUCE, name="twice"), [mine(3)], will_wait=False)
    check_tensor(finish(again), torch.full((3,), total()))


@on_all_ranks(*WORLDS)
def test_failures_reach_whoever_waits():
    staged = StagedCollectives(default_context, LateStreams())
    shape = 3 if hvd.rank() else 4
    handle = add(staged.start(Call(ALLREDUCE, name="shapes"), [mine(shape)], will_wait=False))
    with pytest.raises(hvd.HorovodMismatchError, match="Mismatched ALLREDUCE tensor shapes"):
        hvd.synchronize(handle)
    assert hvd.synchronize(handle) is None

    class Broken:
        def synchronize(self):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    streams = LateStreams()
    streams.to_host = lambda tensors: ([torch.empty(3)], Broken())
    broken = StagedCollectives(default_context, streams)
    handle = add(broken.start(Call(ALLREDUCE, name="broken"), [mine(3)], will_wait=False))
    with pytest.raises(hvd.HorovodInternalError, match="broken: copying the tensor to the host failed: CUDA error"):
        hvd.synchronize(handle)
    check_tensor(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(hvd.size())))
