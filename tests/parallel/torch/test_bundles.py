# SPDX-License-Identifier: Apache-2.0
"""Small gradients that are reduced as one tensor: values equal those of separate reductions, mismatches are named."""

import pytest
import torch
from harness.torch_training import on_torch_ranks
from harness.waiting import DEADLOCK2

import horovod.torch as hvd

# The tensor of 5000 numbers is too large for a bundle.
SHAPES = [(3,), (), (2, 5), (1,), (0,), (7, 1, 2), (5000,), (4, 4)]


class Weighted(torch.nn.Module):
    """Module whose loss is a weighted sum of its parameters, so that the factors are the gradients."""

    def __init__(self, shapes=SHAPES, dtypes=(torch.float32,)):
        super().__init__()
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.zeros(shape, dtype=dtypes[i % len(dtypes)])) for i, shape in enumerate(shapes)
        )

    def forward(self, factor):
        return sum((weight * (factor + i)).sum() for i, weight in enumerate(self.weights))


def wrapped(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    return hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)


def bundles(optimizer):
    return optimizer._reducer._table.bundles


def gradients(model):
    return [weight.grad.flatten().tolist() for weight in model.weights]


def average(i, size):
    return i + (size - 1) / 2


@on_torch_ranks("shm2", "shm4", "tcp2")
def test_bundled_gradients_are_averages():
    model = Weighted()
    optimizer = wrapped(model)
    for step in range(3):
        model(hvd.rank() + step).backward()
        expected = [average(i + step, hvd.size()) for i in range(len(SHAPES))]
        for weight, value in zip(model.weights, expected, strict=True):
            assert torch.equal(weight.grad, torch.full_like(weight, value))
        optimizer.step()
        optimizer.zero_grad()
        assert bundles(optimizer) == step + 1


@on_torch_ranks("shm2")
def test_one_type_is_bundled_and_others_travel_alone():
    model = Weighted([(2,)] * 6, (torch.float32, torch.float64))
    optimizer = wrapped(model)
    model(hvd.rank()).backward()
    assert gradients(model) == [[average(i, hvd.size())] * 2 for i in range(6)]
    assert bundles(optimizer) == 1


@on_torch_ranks("shm2")
def test_graphs_that_differ_are_not_bundled_and_come_out_right():
    model = Weighted([(2,)] * 4)
    optimizer = wrapped(model)
    sum((model.weights[i] * 4).sum() for i in ((0, 1, 2) if hvd.rank() else (1, 2, 3))).backward()
    optimizer.synchronize()
    assert gradients(model) == [[2.0] * 2, [4.0] * 2, [4.0] * 2, [2.0] * 2]
    assert bundles(optimizer) == 0
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.zero_grad()
    model(hvd.rank()).backward()  # the second equal step uses a bundle
    assert gradients(model) == [[average(i, hvd.size())] * 2 for i in range(4)]
    assert bundles(optimizer) == 1


@on_torch_ranks(DEADLOCK2)
def test_a_shape_that_differs_is_named():
    model = Weighted([(2,), (3 if hvd.rank() else 4,), (2,)])
    optimizer = wrapped(model)
    with pytest.raises(hvd.HorovodInternalError, match=r"weights\.1"):
        model(0).backward()
    assert bundles(optimizer) == 0


@on_torch_ranks("shm2")
def test_adasum_and_strided_gradients_are_left_alone():
    model = Weighted([(2,), (2,)])
    optimizer = wrapped(model, op=hvd.Adasum)
    model(hvd.rank()).backward()
    optimizer.step()
    del optimizer
    model = Weighted([(2, 2), (2,), (3,)])
    optimizer = wrapped(model)
    # On rank 1 the gradient is not contiguous, so its key differs.
    weight = model.weights[0]
    weight.grad = torch.zeros(4, 4)[::2, ::2] if hvd.rank() else torch.zeros(2, 2)
    model(hvd.rank()).backward()
    assert gradients(model) == [[0.5] * 4, [1.5] * 2, [2.5] * 3]
    assert bundles(optimizer) == 0


@on_torch_ranks("shm2")
def test_a_rank_that_has_joined_takes_part_in_bundles():
    model = Weighted([(2,)] * 3)
    optimizer = wrapped(model, op=hvd.Sum)
    for _ in range(2 if hvd.rank() else 1):
        model(1).backward()
        optimizer.step()
        optimizer.zero_grad()
    hvd.join()
    # Gradients are 1, 2 and 3 on both ranks in the first step. In the second step rank 0 has joined and gives zeros.
    steps = 2 + hvd.rank()
    assert [weight.tolist() for weight in model.weights] == [[-steps * factor] * 2 for factor in (1.0, 2.0, 3.0)]
    assert bundles(optimizer) == 1 + hvd.rank()


@on_torch_ranks("shm2")
def test_parameters_in_another_order_are_matched_by_name():
    model = Weighted([(2,)] * 4)
    named = list(model.named_parameters())
    if hvd.rank():
        named = [named[0], *reversed(named[1:])]
    optimizer = torch.optim.SGD([parameter for _, parameter in named], 1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named)
    model(hvd.rank()).backward()
    assert gradients(model) == [[average(i, hvd.size())] * 2 for i in range(4)]
    assert bundles(optimizer) == 0
