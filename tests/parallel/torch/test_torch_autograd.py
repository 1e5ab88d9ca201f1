# SPDX-License-Identifier: Apache-2.0
"""Gradients through the collectives as Horovod defines them: averages in some places where one might expect sums.

Every rank's loss is its output times a weight that depends on the rank, so that gradients of ranks can be told apart.
"""

import threading

import pytest
import torch
from harness.tensors import check_tensor
from harness.worlds import on_all_ranks

import horovod.torch as hvd

WORLDS = ("shm2", "shm4")


def leaf(*shape, dtype=torch.float64):
    return torch.full(shape, float(hvd.rank() + 1), dtype=dtype, requires_grad=True)


def weight(rank, rows):
    """Return the gradient that a rank's loss gives to each row of its output."""
    return torch.arange(rows, dtype=torch.float64) + 10.0 * (rank + 1)


def backward(output):
    (output * weight(hvd.rank(), output.shape[0]).reshape(-1, *[1] * (output.dim() - 1))).sum().backward()


def weights(rows):
    """Return the gradients of all ranks, of shape [size, rows]."""
    return torch.stack([weight(rank, rows) for rank in range(hvd.size())])


@pytest.mark.checked_numbers("gradients of allreduce", against="the exact values")
@pytest.mark.parametrize("name", [None, "named"])
@on_all_ranks(*WORLDS)
def test_allreduce(name):
    for op, expected in (
        (hvd.Sum, weights(4).sum(0)),
        (hvd.Average, weights(4).mean(0)),
        (hvd.Max, weights(4).amax(0)),
    ):
        tensor = leaf(4)
        backward(hvd.allreduce(tensor, op=op, name=name))
        check_tensor(tensor.grad, expected)
    tensor = leaf(4)
    backward(hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25, name=name))
    check_tensor(tensor.grad, weights(4).sum(0) / 2)


@on_all_ranks(*WORLDS)
def test_gradient_that_is_not_contiguous():
    tensor = leaf(3)
    hvd.allreduce(tensor, op=hvd.Sum).sum().backward()  # the gradient is an expanded scalar
    check_tensor(tensor.grad, torch.full((3,), float(hvd.size()), dtype=torch.float64))


@on_all_ranks(*WORLDS)
def test_grouped_allreduce():
    tensors = [leaf(4), leaf(2, 3)]
    integers = torch.ones(3, dtype=torch.int64)
    first, counts, second = hvd.grouped_allreduce([tensors[0], integers, tensors[1]], op=hvd.Sum)
    assert not counts.requires_grad
    check_tensor(counts, torch.full((3,), hvd.size()))
    (first * weight(hvd.rank(), 4)).sum().backward(retain_graph=True)
    check_tensor(tensors[0].grad, weights(4).sum(0))
    check_tensor(tensors[1].grad, torch.zeros(2, 3, dtype=torch.float64))
    tensors[0].grad = None
    ((first * weight(hvd.rank(), 4)).sum() + second.sum()).backward()
    check_tensor(tensors[0].grad, weights(4).sum(0))
    check_tensor(tensors[1].grad, torch.full((2, 3), float(hvd.size()), dtype=torch.float64))


def gathered_gradient(first_rows):
    """Return this rank's rows of the average of all ranks' gradients."""
    total = sum(first_rows)
    average = weights(total).mean(0)
    return torch.split(average, first_rows)[hvd.rank()]


@pytest.mark.checked_numbers("gradients of allgather", against="the exact values")
@on_all_ranks(*WORLDS)
def test_allgather():
    rows = [rank + 1 for rank in range(hvd.size())]
    tensor = leaf(rows[hvd.rank()], 2)
    backward(hvd.allgather(tensor))
    check_tensor(tensor.grad, gathered_gradient(rows).reshape(-1, 1).expand(-1, 2))


@on_all_ranks(*WORLDS)
def test_grouped_allgather():
    rows = [list(range(hvd.size())), [2] * hvd.size()]
    tensors = [leaf(rows[0][hvd.rank()]), leaf(2)]
    for result in hvd.grouped_allgather(tensors):
        backward_of_group = (result * weight(hvd.rank(), result.shape[0])).sum()
        backward_of_group.backward(retain_graph=True)
    for tensor, counts in zip(tensors, rows, strict=True):
        check_tensor(tensor.grad, gathered_gradient(counts))


@on_all_ranks(*WORLDS)
def test_broadcast():
    tensor = leaf(4)
    backward(hvd.broadcast(tensor, 1))
    check_tensor(tensor.grad, weights(4).mean(0) if hvd.rank() == 1 else torch.zeros(4, dtype=torch.float64))


@pytest.mark.checked_numbers("gradients of alltoall", against="the exact values")
@on_all_ranks(*WORLDS)
def test_alltoall():
    """Gradients go back to the ranks that sent the rows; one row is never sent and has no gradient."""
    size, rank = hvd.size(), hvd.rank()
    tensor = leaf(size * (rank + 1) + 1)
    output, received = hvd.alltoall(tensor, splits=[rank + 1] * size)
    assert not received.requires_grad
    backward(output)
    start = sum(range(1, rank + 1))
    parts = [weight(target, 99)[start : start + rank + 1] for target in range(size)]
    check_tensor(tensor.grad, torch.cat([*parts, torch.zeros(1, dtype=torch.float64)]))
    even = leaf(size)
    backward(hvd.alltoall(even))
    check_tensor(even.grad, torch.stack([weight(target, size)[rank] for target in range(size)]))


@pytest.mark.checked_numbers("gradients of reducescatter", against="the exact values")
@on_all_ranks(*WORLDS)
def test_reducescatter():
    size = hvd.size()
    rows = [(5 + size - 1 - index) // size for index in range(size)]
    gathered = torch.cat([weight(rank, count) for rank, count in enumerate(rows)])
    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        tensor = leaf(5)
        backward(hvd.reducescatter(tensor, op=op))
        check_tensor(tensor.grad, gathered * factor)
        tensor = leaf(5)
        backward(hvd.reducescatter(tensor, op=op, prescale_factor=2.0, postscale_factor=3.0))
        check_tensor(tensor.grad, gathered * factor * 6)
        tensors = [leaf(5), leaf(5)]
        for result in hvd.grouped_reducescatter(tensors, op=op):
            (result * weight(hvd.rank(), result.shape[0])).sum().backward(retain_graph=True)
        for tensor in tensors:
            check_tensor(tensor.grad, gathered * factor)


@on_all_ranks(*WORLDS)
def test_compressed_allreduce_keeps_the_gradient():
    tensor = leaf(4, dtype=torch.float32)
    hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16).sum().backward()
    check_tensor(tensor.grad, torch.full((4,), float(hvd.size())))


@on_all_ranks(*WORLDS)
def test_gradient_of_a_gradient():
    tensor = leaf(3)
    (gradient,) = torch.autograd.grad((hvd.allreduce(tensor, op=hvd.Sum) ** 3).sum(), tensor, create_graph=True)
    total = sum(range(1, hvd.size() + 1))
    check_tensor(gradient, torch.full((3,), 3.0 * hvd.size() * total**2, dtype=torch.float64))
    gradient.sum().backward()
    # The second derivative goes through both allreduces again.
    check_tensor(tensor.grad, torch.full((3,), 6.0 * total * hvd.size() ** 2, dtype=torch.float64))


@on_all_ranks(*WORLDS)
def test_backward_passes_that_start_in_different_orders_match_by_name():
    first, second = leaf(2), leaf(2)
    losses = [
        hvd.allreduce(first, op=hvd.Sum, name="first").sum(),
        hvd.allreduce(second, op=hvd.Max, name="second").sum(),
    ]
    in_turn = losses if hvd.rank() == 0 else losses[::-1]
    threads = [threading.Thread(target=loss.backward) for loss in in_turn]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_tensor(first.grad, torch.full((2,), float(hvd.size()), dtype=torch.float64))
    check_tensor(second.grad, torch.ones(2, dtype=torch.float64))


@on_all_ranks(*WORLDS)
def test_nothing_is_recorded_where_nobody_asks():
    with torch.no_grad():
        assert hvd.allreduce(leaf(3)).grad_fn is None
    assert hvd.allreduce(torch.ones(3)).grad_fn is None
    assert not hvd.synchronize(hvd.allreduce_async(leaf(3))).requires_grad
    assert type(hvd.allreduce(leaf(3)).grad_fn).__name__ == "HorovodAllreduceBackward"
