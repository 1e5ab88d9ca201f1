# SPDX-License-Identifier: Apache-2.0
"""Asynchronous work, futures, wrong calls, time limits, lost ranks, and the end of groups."""

import gc
import os
import signal
import threading
import time
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from harness.torch_groups import on_torch_ranks, process_group
from harness.worlds import in_worlds
from testkit.speed import patience

import horovod.numpy as hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.distributed import ProcessGroupError, ProcessGroupMismatchError
from horovod.torch.distributed.work import WORK_SURVIVES_CPP

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(not WORK_SURVIVES_CPP, reason="this torch turns our errors into RuntimeErrors"),
]


@on_torch_ranks("shm2")
def test_work():
    with process_group() as (_, size):
        tensors = [torch.full((100,), float(index)) for index in range(20)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for index, work in reversed(list(enumerate(works))):
            assert work.wait() is True
            assert work.is_completed()
            assert work.is_success()
            assert work.exception() is None
            assert torch.equal(work.result()[0], torch.full((100,), float(size * index)))


@on_torch_ranks("shm2")
def test_a_time_limit_may_be_longer_than_a_setting():
    with process_group(timeout=timedelta(days=36_500)) as (_, size):  # torch's own stores cannot count much further
        tensor = torch.ones(3)
        assert dist.all_reduce(tensor, async_op=True).wait(timedelta.max)
        assert torch.equal(tensor, torch.full((3,), float(size)))


@on_torch_ranks("shm2")
def test_futures():
    with process_group() as (_, size):
        work = dist.all_reduce(torch.ones(3), async_op=True)
        future = work.get_future()
        doubled = future.then(lambda done: done.value()[0] * 2)
        assert torch.equal(doubled.wait(), torch.full((3,), 2.0 * size))
        assert work.wait()
        done = dist.all_reduce(torch.ones(3), async_op=True)
        done.wait()
        assert torch.equal(done.get_future().wait()[0], torch.full((3,), float(size)))


@on_torch_ranks("shm2")
def test_a_future_does_not_wait_for_an_older_one():
    with process_group() as (rank, size):
        late = torch.zeros(2)
        receive = dist.irecv(late, 1).get_future() if rank == 0 else None
        total = torch.ones(4)
        dist.all_reduce(total, async_op=True).get_future().wait()
        assert torch.equal(total, torch.full((4,), float(size)))
        if rank == 1:
            dist.send(torch.tensor([5.0, 6.0]), 0)
        else:
            receive.wait()
            assert late.tolist() == [5.0, 6.0]


@on_torch_ranks("shm2")
def test_a_callback_may_wait_for_another_collective():
    with process_group() as (_, size):

        def again(done):
            return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

        futures = [dist.all_reduce(torch.ones(2), async_op=True).get_future().then(again)]
        assert torch.equal(futures[0].wait(), torch.full((2,), float(size * size)))


@on_torch_ranks("shm2")
def test_wrong_calls_are_refused_and_the_group_lives_on():
    with process_group() as (rank, size):
        with pytest.raises(ProcessGroupMismatchError, match="all_reduce: .*operation 1.*default process group"):
            dist.all_reduce(torch.ones(3 + rank))
        with pytest.raises(ProcessGroupMismatchError):
            dist.all_reduce(torch.ones(2)) if rank else dist.broadcast(torch.ones(2), 0)
        with pytest.raises(ProcessGroupMismatchError):
            dist.all_gather([torch.zeros(2 + rank) for _ in range(size)], torch.zeros(2 + rank))
        rows = [2, 2] if rank == 0 else [3, 3]
        told = f"rank {1 - rank} sent {2 if rank else 3} elements, but {rows[0]} were expected"
        with pytest.raises(ProcessGroupMismatchError, match=told):
            dist.all_to_all_single(torch.zeros(sum(rows)), torch.zeros(sum(rows)), rows, None)
        with pytest.raises(ValueError, match="contiguous"):
            dist.all_reduce(torch.ones(3, 4)[:, 1])
        with pytest.raises(ValueError, match="of the CPU and of CUDA, not of meta"):
            dist.all_reduce(torch.ones(3, device="meta"))
        with pytest.raises(ValueError, match="not defined for torch.float32"):
            dist.all_reduce(torch.ones(3), dist.ReduceOp.BXOR)
        fine = torch.ones(1)
        dist.all_reduce(fine)
        assert fine.item() == size


@on_torch_ranks("shm2")
def test_time_limits():
    hvd.barrier()  # the limit also applies to making the group, so all ranks start at once
    with process_group(timeout=timedelta(seconds=4)) as (rank, _):
        if rank == 0:
            begin = time.monotonic()
            work = dist.all_reduce(torch.ones(3), async_op=True)
            with pytest.raises(ProcessGroupError, match="not done after 0.1 s"):
                work.wait(timedelta(seconds=0.1))
            with pytest.raises(ProcessGroupError, match="rank 1 of 2 has not submitted it"):
                work.wait()
            assert 3.5 < time.monotonic() - begin < patience(15)
        hvd.barrier()  # rank 1 calls after rank 0 has given up
        if rank == 1:
            with pytest.raises(RuntimeError):
                dist.all_reduce(torch.ones(3))
    with process_group() as (rank, _):
        received = torch.zeros(1)
        dist.barrier()
        group = dist.new_group(timeout=timedelta(seconds=3))
        if rank == 0:
            with pytest.raises(ProcessGroupError, match="recv from rank 1 was not done after 3 s"):
                dist.recv(received, 1, group=group)
        hvd.barrier()
        dist.all_reduce(received)  # the other group still works


@on_torch_ranks("shm2")
def test_destroyed_and_aborted_groups():
    with process_group() as (rank, _):
        group = dist.new_group()
        work = dist.irecv(torch.zeros(1), 1 - rank, group=group)
        future = work.get_future()
        group.abort() if rank == 0 else group.shutdown()
        with pytest.raises(ProcessGroupError, match="aborted|destroyed|shut down|departed"):
            work.wait()
        with pytest.raises(RuntimeError):
            future.wait()
        with pytest.raises(ProcessGroupError):
            dist.all_reduce(torch.ones(1), group=group)
        dist.barrier()


@on_torch_ranks("shm2")
def test_nothing_is_left_behind():
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    def is_left_behind():
        return descriptors() > before[0] or threading.active_count() > before[1]

    with process_group():
        dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
    before = descriptors(), threading.active_count()
    for _ in range(3):
        with process_group() as (_, size):
            dist.new_group(list(range(size)))
            dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
    give_up = time.monotonic() + patience(20)
    while is_left_behind() and time.monotonic() < give_up:
        threading.Event().wait(0.05)
    assert descriptors() <= before[0]
    assert threading.active_count() <= before[1]


def lose_a_rank():
    """Kill rank 1 while the other ranks wait for it, and check their errors."""
    with process_group() as (rank, _):
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        begin = time.monotonic()
        with pytest.raises(HorovodInternalError) as told:
            work.wait()
        assert isinstance(told.value, dist.DistBackendError)
        with pytest.raises(RuntimeError, match="all_reduce: .*rank 1"):
            work.get_future().wait()
        assert time.monotonic() - begin < patience(10)
        raise AssertionError(f"told: {told.value.lost_rank} {told.value}")


@in_worlds("shm2")
def test_a_lost_rank_is_named(world):
    # The pool fails the test because a rank died.
    with pytest.raises(BaseException, match="told: 1 all_reduce: .*rank 1"):
        world.run(lose_a_rank, limit_s=120)


@on_torch_ranks("shm2")
def test_work_that_nobody_waits_for():
    with process_group() as (rank, size):
        late = None
        if rank == 0:
            late = torch.zeros(200_000)
            dist.all_reduce(late, async_op=True)  # dropped before rank 1 calls
            watched = weakref.ref(late)
            late = None
            gc.collect()
            assert watched() is not None, "the tensor was freed while the engine still writes to it"
        hvd.barrier()
        if rank == 1:
            dist.all_reduce(torch.ones(200_000))
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == size
