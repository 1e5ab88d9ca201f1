# SPDX-License-Identifier: Apache-2.0
"""Tensors that are freed or lose their memory while an asynchronous operation of torch.distributed uses them."""

import gc

import pytest
import torch
import torch.distributed as dist
from harness.torch_groups import new_name, on_torch_ranks, process_group

all_gather_single = new_name(dist, "all_gather_single", "all_gather_into_tensor")
reduce_scatter_single = new_name(dist, "reduce_scatter_single", "reduce_scatter_tensor")

pytestmark = pytest.mark.timeout(150)
COUNT = 1000  # number of elements

RESIZED = {
    "resize_": lambda tensor: tensor.resize_(8 * COUNT),
    "the storage, gone": lambda tensor: tensor.untyped_storage().resize_(0),
}
REPLACED = {
    "set_": lambda tensor: tensor.set_(torch.zeros(COUNT)),
    "data": lambda tensor: setattr(tensor, "data", torch.zeros(COUNT)),
}


def all_gather(tensor):
    return all_gather_single(torch.empty(2 * COUNT), tensor, async_op=True)


def all_gather_list(tensor):
    return dist.all_gather([torch.empty(COUNT), torch.empty(COUNT)], tensor, async_op=True)


def reduce_scatter(tensor):
    return reduce_scatter_single(torch.empty(tensor.numel() // 2), tensor, async_op=True)


def coalesced(tensor):
    with dist._coalescing_manager(async_ops=True) as pending:
        dist.all_reduce(tensor)
    return pending


def message(tensor):
    return dist.isend(tensor, 1) if dist.get_rank() == 0 else dist.irecv(tensor, 0)


STARTS = {
    "all_reduce": lambda tensor: dist.all_reduce(tensor, async_op=True),
    "broadcast": lambda tensor: dist.broadcast(tensor, 0, async_op=True),
    "all_gather_into_tensor": all_gather,
    "all_gather": all_gather_list,
    "reduce_scatter_tensor": reduce_scatter,
    "all_reduce ": coalesced,
    "(send to|recv from) rank": message,
}


def until_the_engine_is_done(work):
    """Let the engine finish without finishing the operation: only then may memory be freed."""
    dist.barrier()
    for one in getattr(work, "_works", getattr(work, "works", [work])):
        while not one._flight.wait(0.1):
            pass


@on_torch_ranks("shm2")
def test_a_tensor_that_was_resized_is_told():
    with process_group():
        for operation, start in STARTS.items():
            for resize in RESIZED.values():
                tensor = torch.ones(COUNT)
                work = start(tensor)
                until_the_engine_is_done(work)
                resize(tensor)
                with pytest.raises(ValueError, match=rf"'?{operation.strip()}.*was resized or given other memory"):
                    work.wait()
            start(torch.ones(COUNT)).wait()


@on_torch_ranks("shm2")
def test_a_tensor_with_other_memory_keeps_the_old_until_the_end():
    with process_group() as (rank, _):
        for replace in REPLACED.values():
            tensor = torch.full((COUNT,), 1.0 + rank)
            old = tensor.untyped_storage()
            work = dist.all_reduce(tensor, async_op=True)
            replace(tensor)
            with pytest.raises(ValueError, match="all_reduce.*was resized or given other memory"):
                work.wait()
            assert torch.empty(0).set_(old)[:COUNT].tolist() == [3.0] * COUNT
            assert not tensor.count_nonzero()


@pytest.mark.checked_numbers("an all_reduce whose input the script has forgotten", against="the exact sum")
@on_torch_ranks("shm2")
def test_a_tensor_that_the_script_forgets_lives_until_the_end():
    with process_group() as (rank, _):
        output = torch.empty(2 * COUNT)
        work = all_gather_single(output, torch.full((COUNT,), 1.0 + rank), async_op=True)
        reduced = dist.all_reduce(torch.full((COUNT,), 1.0 + rank), async_op=True)
        gc.collect()
        others = [torch.full((COUNT,), -1.0) for _ in range(8)]  # would get the memory if it were free
        reduced.wait()
        work.wait()
        assert reduced.result()[0].tolist() == [3.0] * COUNT
        assert output.tolist() == [1.0] * COUNT + [2.0] * COUNT
        assert all(other.unique().tolist() == [-1.0] for other in others)


@on_torch_ranks("shm2")
def test_a_tensor_may_be_resized_once_the_work_is_done():
    with process_group():
        tensor = torch.ones(COUNT)
        work = dist.all_reduce(tensor, async_op=True)
        while not work.is_completed():
            pass
        tensor.untyped_storage().resize_(0)
        work.wait()
