# SPDX-License-Identifier: Apache-2.0
"""ReduceOp.AVG of integers with the horovod backend: the exact quotient, even if the sum does not fit the type."""

import pytest
import torch
import torch.distributed as dist
from harness.torch_groups import new_name, on_torch_ranks, process_group

reduce_scatter_single = new_name(dist, "reduce_scatter_single", "reduce_scatter_tensor")

pytestmark = pytest.mark.timeout(150)
LARGE = {
    torch.uint8: [200, 255, 1],
    torch.int8: [100, -128, -1],
    torch.int16: [30_001, -32_768, -1],
    torch.int32: [2_000_000_000, -(2**31), -1],
}


def quotients(rows):
    """Return the exact averages of the ranks' numbers, truncated toward zero."""
    sums = [sum(column) for column in zip(*rows, strict=True)]
    return [abs(total) // len(rows) * (1 if total >= 0 else -1) for total in sums]


@pytest.mark.checked_numbers("ReduceOp.AVG of integers in torch.distributed", against="the exact quotient")
@on_torch_ranks("shm2", "hosts4")
def test_average():
    with process_group() as (rank, size):
        for dtype, largest in LARGE.items():
            rows = [[largest[0] - other, largest[1], largest[2] * (other % 2)] for other in range(size)]
            expected, mine = quotients(rows), torch.tensor(rows[rank], dtype=dtype)
            dist.all_reduce(tensor := mine.clone(), dist.ReduceOp.AVG)
            assert tensor.tolist() == expected, dtype
            dist.all_reduce_coalesced(several := [mine.clone(), mine[:1].clone()], dist.ReduceOp.AVG)
            assert [it.tolist() for it in several] == [expected, expected[:1]]
            dist.reduce(tensor := mine.clone(), size - 1, dist.ReduceOp.AVG)
            assert tensor.tolist() == (expected if rank == size - 1 else rows[rank])
            output = torch.empty(3, dtype=dtype)
            reduce_scatter_single(output, mine.repeat(size), dist.ReduceOp.AVG)
            assert output.tolist() == expected
            dist.reduce_scatter(output, [mine] * size, dist.ReduceOp.AVG)
            assert output.tolist() == expected
            lengths = [1 + other % 3 for other in range(size)]
            uneven = torch.empty(lengths[rank], dtype=dtype)
            dist.reduce_scatter(uneven, [mine[:length] for length in lengths], dist.ReduceOp.AVG)
            assert uneven.tolist() == expected[: lengths[rank]]
