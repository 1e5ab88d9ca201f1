# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's collectives send the values of tensors with the negative or conjugate bit, not their memory."""

import pytest
import torch
import torch.distributed as dist
from harness.torch_groups import new_name, on_torch_ranks, process_group

all_gather_single = new_name(dist, "all_gather_single", "all_gather_into_tensor")
reduce_scatter_single = new_name(dist, "reduce_scatter_single", "reduce_scatter_tensor")

pytestmark = pytest.mark.timeout(150)


def negated(*values):
    tensor = torch._neg_view(-torch.tensor(values))
    assert tensor.is_neg()
    return tensor


@pytest.mark.checked_numbers("collectives of torch.distributed on tensors with the negative bit", against="NumPy")
@on_torch_ranks("shm2")
def test_the_negative_bit():
    with process_group() as (rank, size):
        mine = rank + 1.0
        tensor = negated(mine, -2.0)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [3.0, -4.0]
        dist.broadcast(tensor := negated(mine, 1.0), 1)
        assert tensor.tolist() == [2.0, 1.0]
        dist.reduce(tensor := negated(mine), 0)
        assert rank or tensor.tolist() == [3.0]
        flags = negated(6, 1 + rank)
        dist.all_reduce(flags, dist.ReduceOp.BOR)
        assert flags.tolist() == [6, 3]

        outputs = [negated(0.0), negated(0.0)]
        dist.all_gather(outputs, negated(mine))
        assert [it.tolist() for it in outputs] == [[1.0], [2.0]]
        outputs = [negated(0.0), negated(0.0, 0.0)]
        dist.all_gather(outputs, negated(*[mine] * (rank + 1)))
        assert [it.tolist() for it in outputs] == [[1.0], [2.0, 2.0]]
        all_gather_single(output := negated(0.0, 0.0), negated(mine))
        assert output.tolist() == [1.0, 2.0]
        reduce_scatter_single(output := negated(0.0), negated(1.0, mine))
        assert output.tolist() == [2.0 + rank]
        dist.reduce_scatter(output := negated(0.0), [negated(1.0), negated(mine)])
        assert output.tolist() == [2.0 + rank]

        for splits in ((), ([1, 1], [1, 1])):
            dist.all_to_all_single(output := negated(0.0, 0.0), negated(mine, mine + 4), *splits)
            assert output.tolist() == [1.0 + 4 * rank, 2.0 + 4 * rank]
        outputs = [negated(0.0) for _ in range(size)] if rank == 0 else None
        dist.gather(negated(mine), outputs, 0)
        assert rank or [it.tolist() for it in outputs] == [[1.0], [2.0]]
        dist.scatter(output := negated(0.0), [negated(1.0), negated(2.0)] if rank == 0 else None, 0)
        assert output.tolist() == [mine]
        if rank == 0:
            dist.send(negated(1.0, 3.0), 1)
        else:
            dist.recv(output := negated(0.0, 0.0), 0)
            assert output.tolist() == [1.0, 3.0]


@pytest.mark.checked_numbers("a reduction of conjugate views", against="NumPy")
@on_torch_ranks("shm2")
def test_the_conjugate_bit():
    """Most functions of torch refuse conjugate tensors; the process group accepts them where torch does."""
    with process_group() as (rank, _):
        group = dist.distributed_c10d._get_default_group()
        # If all ranks had the bit, a sum would be right by chance.
        tensor = torch.tensor([complex(rank, 1.0)])
        tensor = tensor.conj() if rank == 0 else tensor
        group.allreduce([tensor]).wait()
        assert tensor.tolist() == [1 + 0j]
        assert tensor.is_conj() == (rank == 0)
        output = torch.zeros(1, dtype=tensor.dtype)
        dist.reduce_scatter(output, [torch.tensor([1j]).conj(), torch.tensor([2j]).conj()])
        assert output.tolist() == [-2j * (1 + rank)]
