# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors: the ranks gather them, and the result equals the dense reduction."""

import pytest
import torch
from harness.tensors import check_tensor
from harness.worlds import on_all_ranks

import horovod.torch as hvd

WORLDS = ("shm2", "shm4")


def sparse_of(rank, dtype=torch.float32):
    """Return two rows of five, one of them given twice. Rank 0 gives no rows."""
    if rank == 0:
        return torch.zeros(5, 3, dtype=dtype).to_sparse(1)
    indices = torch.tensor([[rank, 4, rank]])
    values = torch.arange(9).reshape(3, 3).to(dtype) + rank
    return torch.sparse_coo_tensor(indices, values, (5, 3), check_invariants=True)


@pytest.mark.parametrize("name", ["sparse", None])
@on_all_ranks(*WORLDS)
def test_sum_and_average(name):
    everything = sum(sparse_of(rank).to_dense() for rank in range(hvd.size()))
    pending = hvd.sparse_allreduce_async(sparse_of(hvd.rank()), name=name, op=hvd.Sum)
    assert callable(pending)
    result = pending()
    assert result.layout == torch.sparse_coo
    assert result.shape == (5, 3)
    check_tensor(result.to_dense(), everything)
    average = hvd.sparse_allreduce_async(sparse_of(hvd.rank()), name=name, op=hvd.Average)()
    torch.testing.assert_close(average.to_dense(), everything / hvd.size())


@on_all_ranks(*WORLDS)
def test_integers_and_several_sparse_dimensions():
    everything = sum(sparse_of(rank, torch.int64).to_dense() for rank in range(hvd.size()))
    given = sparse_of(hvd.rank(), torch.int64)
    check_tensor(hvd.sparse_allreduce_async(given, "integers", hvd.Sum)().to_dense(), everything)
    flat = sparse_of(hvd.rank()).to_dense().to_sparse(2)
    check_tensor(
        hvd.sparse_allreduce_async(flat, "flat", hvd.Sum)().to_dense(),
        sum(sparse_of(rank).to_dense() for rank in range(hvd.size())),
    )


@pytest.mark.checked_numbers("averages of sparse integers, also too large for their type", against="the exact quotient")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
@on_all_ranks(*WORLDS)
def test_the_average_of_integers_is_exact(dtype):
    """Every rank gives 1, 7 twice and the largest value; at index 3 only rank 0 gives a nonzero value."""
    largest = torch.iinfo(dtype).max if dtype != torch.int64 else 1 << 40
    mine = hvd.rank() == 0
    values = torch.tensor([1, 7, 7, largest, 9 * mine], dtype=dtype)
    given = torch.sparse_coo_tensor([[0, 1, 1, 2, 3]], values, (5,), check_invariants=True)
    average = hvd.sparse_allreduce_async(given, None, hvd.Average)()
    check_tensor(average.to_dense(), torch.tensor([1, 14, largest, 9 // hvd.size(), 0], dtype=dtype))


@on_all_ranks(*WORLDS)
def test_gradient_of_a_sparse_embedding():
    embedding = torch.nn.Embedding(6, 2, sparse=True)
    embedding(torch.tensor([hvd.rank(), 5])).sum().backward()
    result = hvd.sparse_allreduce_async(embedding.weight.grad, "embedding", hvd.Sum)().to_dense()
    expected = torch.zeros(6, 2)
    expected[: hvd.size()] = 1
    expected[5] = hvd.size()
    check_tensor(result, expected)


@on_all_ranks(*WORLDS)
def test_different_dense_shapes_are_an_error_on_every_rank():
    rows = 5 + (hvd.rank() == 1)
    given = torch.sparse_coo_tensor([[rows - 1]], [1.0], (rows,), check_invariants=True)
    for name in ("rows", None):
        pending = hvd.sparse_allreduce_async(given, name, hvd.Sum)
        with pytest.raises(hvd.HorovodMismatchError, match=r"shape.*\[0, 5\].*\[0, 6\]|shape.*\[0, 6\].*\[0, 5\]"):
            pending()
