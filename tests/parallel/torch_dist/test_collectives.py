# SPDX-License-Identifier: Apache-2.0
"""Every collective of torch.distributed with the horovod backend, against values computed in one process."""

from functools import reduce

import pytest
import torch
import torch.distributed as dist
from harness.torch_groups import new_name, on_torch_ranks, process_group, rank_tensor

all_gather_single = new_name(dist, "all_gather_single", "all_gather_into_tensor")
reduce_scatter_single = new_name(dist, "reduce_scatter_single", "reduce_scatter_tensor")

pytestmark = pytest.mark.timeout(150)

WORLDS = ("shm2", "hosts4")
NUMBERS = (torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)
EVERY = (*NUMBERS, torch.bool, torch.complex64)
SHAPES = ((), (1,), (0,), (7,), (5, 31), (700,))


def same(actual, expected):
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert torch.equal(actual, expected), (actual, expected)


def all_ranks(size, shape, dtype=torch.float32):
    return [rank_tensor(rank, shape, dtype) for rank in range(size)]


@pytest.mark.checked_numbers("all_reduce of every data type", against="torch in one process")
@on_torch_ranks(*WORLDS)
def test_all_reduce_sums_every_dtype_and_shape():
    with process_group() as (rank, size):
        for dtype in (*NUMBERS, torch.complex64):
            for shape in SHAPES:
                tensors = all_ranks(size, shape, dtype)
                tensor = tensors[rank].clone()
                dist.all_reduce(tensor)
                same(tensor, reduce(torch.add, tensors))


@on_torch_ranks(*WORLDS)
def test_all_reduce_operations():
    with process_group() as (rank, size):
        tensors = all_ranks(size, (40,), torch.int32)
        expected = {
            dist.ReduceOp.MIN: reduce(torch.minimum, tensors),
            dist.ReduceOp.MAX: reduce(torch.maximum, tensors),
            dist.ReduceOp.PRODUCT: reduce(torch.mul, tensors),
            dist.ReduceOp.BAND: reduce(torch.bitwise_and, tensors),
            dist.ReduceOp.BOR: reduce(torch.bitwise_or, tensors),
            dist.ReduceOp.BXOR: reduce(torch.bitwise_xor, tensors),
        }
        for op, result in expected.items():
            tensor = tensors[rank].clone()
            dist.all_reduce(tensor, op)
            same(tensor, result)
        floats = all_ranks(size, (33,))
        average = floats[rank].clone()
        dist.all_reduce(average, dist.ReduceOp.AVG)
        same(average, reduce(torch.add, floats) / size)
        scaled = floats[rank].clone()
        dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
        same(scaled, reduce(torch.add, [0.5 * tensor for tensor in floats]))
        flags = all_ranks(size, (50,), torch.bool)
        for op, combine in ((dist.ReduceOp.SUM, torch.logical_or), (dist.ReduceOp.PRODUCT, torch.logical_and)):
            flag = flags[rank].clone()
            dist.all_reduce(flag, op)
            same(flag, reduce(combine, flags))


def in_another_order(tensor, rank):
    """Return a copy whose elements are in another order in memory on odd ranks."""
    return tensor.clone(memory_format=torch.channels_last if rank % 2 else torch.contiguous_format)


@on_torch_ranks(*WORLDS)
def test_elements_meet_whatever_their_order_in_memory():
    with process_group() as (rank, size):
        tensors = all_ranks(size, (2, 3, 4, 5), torch.int32)
        for op, result in ((dist.ReduceOp.SUM, reduce(torch.add, tensors)),
                           (dist.ReduceOp.BXOR, reduce(torch.bitwise_xor, tensors))):  # fmt: skip
            tensor = in_another_order(tensors[rank], rank)
            strides = tensor.stride()
            future = dist.all_reduce(tensor, op, async_op=True).get_future()
            assert future.wait()[0] is tensor
            same(tensor, result)
            assert tensor.stride() == strides
            for root in range(size):
                tensor = in_another_order(tensors[rank], rank)
                dist.reduce(tensor, root, op)
                same(tensor, result if rank == root else tensors[rank])
        for root in range(size):
            tensor = in_another_order(tensors[rank], rank)
            dist.broadcast(tensor, root)
            same(tensor, tensors[root])
        weight = torch.nn.Parameter(in_another_order(tensors[rank].float(), 1))
        dist.broadcast(weight.data, size - 1)
        same(weight.detach(), tensors[size - 1].float())
        several = [in_another_order(tensors[rank], rank), tensors[rank].flatten().clone()]
        dist.all_reduce_coalesced(several)
        same(several[0], reduce(torch.add, tensors))
        same(several[1], several[0].flatten())


@on_torch_ranks(*WORLDS)
def test_reduce_changes_the_root_only():
    with process_group() as (rank, size):
        for root in range(size):
            tensors = all_ranks(size, (9, 3))
            tensor = tensors[rank].clone()
            dist.reduce(tensor, root)
            same(tensor, reduce(torch.add, tensors) if rank == root else tensors[rank])


@on_torch_ranks(*WORLDS)
def test_broadcast_of_every_dtype():
    with process_group() as (rank, size):
        for dtype in EVERY:
            for root in (0, size - 1):
                tensor = rank_tensor(rank, (3, 70), dtype)
                dist.broadcast(tensor, root)
                same(tensor, rank_tensor(root, (3, 70), dtype))


@pytest.mark.checked_numbers("gather and all_gather", against="torch in one process")
@on_torch_ranks(*WORLDS)
def test_gathers():
    with process_group() as (rank, size):
        for dtype in EVERY:
            tensors = all_ranks(size, (4, 5), dtype)
            listed = [torch.zeros_like(tensor) for tensor in tensors]
            dist.all_gather(listed, tensors[rank])
            same(torch.stack(listed), torch.stack(tensors))
            together = torch.zeros((size * 4, 5), dtype=dtype)
            all_gather_single(together, tensors[rank])
            same(together, torch.cat(tensors))
            for root in (0, size - 1):
                collected = [torch.zeros_like(tensor) for tensor in tensors] if rank == root else None
                dist.gather(tensors[rank], collected, root)
                if collected is not None:
                    same(torch.stack(collected), torch.stack(tensors))


@on_torch_ranks(*WORLDS)
def test_all_gather_of_different_sizes():
    with process_group() as (rank, size):
        tensors = [rank_tensor(other, (3 * other, 2)) for other in range(size)]
        listed = [torch.zeros_like(tensor) for tensor in tensors]
        dist.all_gather(listed, tensors[rank])
        for actual, expected in zip(listed, tensors, strict=True):
            same(actual, expected)


@pytest.mark.checked_numbers("scatter and reduce_scatter", against="torch in one process")
@on_torch_ranks(*WORLDS)
def test_scatter_and_reduce_scatter():
    with process_group() as (rank, size):
        for dtype in (torch.float32, torch.complex64, torch.bool):
            parts = [rank_tensor(100 + other, (2, 3), dtype) for other in range(size)]
            output = torch.zeros((2, 3), dtype=dtype)
            dist.scatter(output, parts if rank == 1 else None, src=1)
            same(output, parts[rank])
        wholes = all_ranks(size, (size * 3, 2))
        expected = reduce(torch.add, wholes)[rank * 3 : rank * 3 + 3]
        output = torch.zeros(3, 2)
        reduce_scatter_single(output, wholes[rank])
        same(output, expected)
        dist.reduce_scatter(output, list(wholes[rank].chunk(size)))
        same(output, expected)
        reduce_scatter_single(output, wholes[rank], dist.ReduceOp.MAX)
        same(output, reduce(torch.maximum, wholes)[rank * 3 : rank * 3 + 3])
        uneven = [[rank_tensor(10 * giver + taker, (taker + 1,)) for taker in range(size)] for giver in range(size)]
        share = torch.zeros(rank + 1)
        dist.reduce_scatter(share, uneven[rank])
        same(share, reduce(torch.add, [parts[rank] for parts in uneven]))


@pytest.mark.checked_numbers("all_to_all", against="torch in one process")
@on_torch_ranks(*WORLDS)
def test_all_to_all():
    with process_group() as (rank, size):
        for dtype in (torch.float32, torch.complex64):
            given = rank_tensor(rank, (size * 2, 3), dtype)
            output = torch.zeros_like(given)
            dist.all_to_all_single(output, given)
            same(
                output, torch.cat([rank_tensor(r, (size * 2, 3), dtype)[2 * rank : 2 * rank + 2] for r in range(size)])
            )
        # The rank `giver` sends giver + taker rows to the rank `taker`.
        rows = [[giver + taker for taker in range(size)] for giver in range(size)]
        inputs = [rank_tensor(giver, (sum(rows[giver]), 2)) for giver in range(size)]
        expected = torch.cat([inputs[giver].split(rows[giver])[rank] for giver in range(size)])
        output = torch.zeros_like(expected)
        dist.all_to_all_single(output, inputs[rank], [rows[giver][rank] for giver in range(size)], rows[rank])
        same(output, expected)
        outputs = [torch.zeros(rows[giver][rank], 2) for giver in range(size)]
        dist.all_to_all(outputs, list(inputs[rank].split(rows[rank])))
        same(torch.cat(outputs), expected)


@on_torch_ranks(*WORLDS)
def test_coalesced():
    with process_group() as (rank, size):
        tensors = [rank_tensor(rank, (length,)) for length in (3, 100, 1)]
        with dist._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
        for tensor, length in zip(tensors, (3, 100, 1), strict=True):
            same(tensor, reduce(torch.add, all_ranks(size, (length,))))
        outputs = [torch.zeros(size * 2), torch.zeros(size * 5)]
        shares = [torch.zeros(2), torch.zeros(5)]
        with dist._coalescing_manager(async_ops=True) as pending:
            for output in outputs:
                all_gather_single(output, rank_tensor(rank, (len(output) // size,)))
        pending.wait()
        with dist._coalescing_manager():
            for share, output in zip(shares, outputs, strict=True):
                reduce_scatter_single(share, output)
        for share in shares:
            same(share, size * rank_tensor(rank, (len(share),)))


@on_torch_ranks(*WORLDS)
def test_objects():
    with process_group() as (rank, size):
        everything = [None] * size
        dist.all_gather_object(everything, {"rank": rank, "text": "x" * 100 * rank})
        assert [item["rank"] for item in everything] == list(range(size))
        shown = [("from", rank), None]
        dist.broadcast_object_list(shown, src=1)
        assert shown == [("from", 1), None]
        mine = [None]
        dist.scatter_object_list(mine, [f"for {other}" for other in range(size)], src=0)
        assert mine == [f"for {rank}"]
        dist.barrier()
        return everything


@on_torch_ranks(*WORLDS)
def test_point_to_point():
    with process_group() as (rank, size):
        right, left = (rank + 1) % size, (rank - 1) % size
        first, second = torch.zeros(5), torch.zeros(2, 3, dtype=torch.int64)
        operations = [
            dist.P2POp(dist.isend, rank_tensor(rank, (5,)), right, tag=1),
            dist.P2POp(dist.irecv, first, left, tag=1),
            dist.P2POp(dist.irecv, second, left, tag=2),
            dist.P2POp(dist.isend, rank_tensor(rank, (2, 3), torch.int64), right, tag=2),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        same(first, rank_tensor(left, (5,)))
        same(second, rank_tensor(left, (2, 3), torch.int64))
        if rank == 0:
            dist.send(torch.arange(4.0), 1)
        elif rank == 1:
            received = torch.zeros(4)
            assert dist.recv(received, 0) == 0
            same(received, torch.arange(4.0))
        with pytest.raises(NotImplementedError, match="from a named rank"):
            dist.recv(torch.zeros(1))


@on_torch_ranks("hosts4")
def test_subgroups():
    with process_group() as (rank, size):
        pairs = [dist.new_group([0, 2]), dist.new_group([3, 1])]
        alone = [dist.new_group([other]) for other in range(size)]
        mine = pairs[rank % 2]
        members = dist.get_process_group_ranks(mine)
        tensor = rank_tensor(rank, (6,))
        dist.all_reduce(tensor, group=mine)
        same(tensor, sum(rank_tensor(member, (6,)) for member in members))
        dist.broadcast(tensor, members[1], group=mine)
        dist.barrier(group=mine)
        everything = [None, None]
        dist.all_gather_object(everything, rank, group=mine)
        assert everything == members
        lonely = rank_tensor(rank, (6,))
        dist.all_reduce(lonely, group=alone[rank])
        same(lonely, rank_tensor(rank, (6,)))
        if rank == 2:
            dist.send(torch.tensor([2.0]), 0, group=mine)
        if rank == 0:
            received = torch.zeros(1)
            dist.recv(received, 2, group=mine)
            assert received.item() == 2
        dist.destroy_process_group(mine)
        dist.barrier()
