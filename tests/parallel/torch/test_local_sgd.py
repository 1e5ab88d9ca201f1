# SPDX-License-Identifier: Apache-2.0
"""hvd.DiLoCo and hvd.LocalSGD: equal bits on all ranks after each round, and the bits of a reference in NumPy."""

import hashlib
from itertools import pairwise

import numpy as np
import pytest
import torch
from harness.local_sgd import Reference
from harness.worlds import SHM3, on_all_ranks

import horovod.torch as hvd
from horovod.common.local_sgd import AVERAGE, Options

SIZES = (7, 40, 30, 3)
LR = np.float32(2**-5)  # a power of 2, so that torch (which fuses) and NumPy round alike


def model_of(seed=0):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(before, after) for before, after in pairwise(SIZES)]
    return torch.nn.Sequential(*layers)


def gradient(rank, step, name, shape):
    """Return a gradient that does not depend on the weights, so that the reference needs no autograd."""
    seed = [rank, step, *map(ord, name)]
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def inner_step(rank, step, weights):
    for name, value in weights.items():
        value -= LR * gradient(rank, step, name, value.shape)


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.from_numpy(gradient(hvd.rank(), step, name, tuple(parameter.shape)))
        optimizer.step()


def bits_of(model):
    """Return a checksum of all weights."""
    return hashlib.sha1(b"".join(value.detach().numpy().tobytes() for value in model.parameters())).hexdigest()


def wrapped(model, **options):
    inner = torch.optim.SGD(model.parameters(), lr=float(LR))
    return hvd.DiLoCo(inner, named_parameters=model.named_parameters(), **options)


CASES = [
    {"every": 4},
    {"every": 4, "wire": "bf16"},
    {"every": 4, "wire": "int8"},
    {"every": 4, "wire": "int4"},
    {"every": 7, "fragments": 3},
    {"every": 9, "fragments": 3, "delay": 2, "merge": 0.5, "wire": "int4"},
    {"every": 4, "delay": 3},
]


@pytest.mark.parametrize("case", CASES, ids=str)
@on_all_ranks("shm2", SHM3)
def test_the_bits_of_the_reference(case):
    model = model_of(seed=hvd.rank())  # rank 0's weights count
    optimizer = wrapped(model, **case)
    initial = {name: value.detach().numpy().copy() for name, value in model_of(0).named_parameters()}
    reference = Reference(initial, hvd.size(), Options(**case), inner_step)
    for step in range(20):
        train(model, optimizer, 1, step)
        reference.step()
        mine = reference.models[hvd.rank()]
        for name, value in model.named_parameters():
            np.testing.assert_array_equal(value.detach().numpy(), mine[name], f"{name} after step {step}")
    optimizer.finish()
    assert optimizer.core.rounds >= reference.round
    return bits_of(model)


@on_all_ranks("shm2")
def test_local_sgd_averages():
    model = model_of()
    optimizer = hvd.LocalSGD(torch.optim.SGD(model.parameters(), lr=float(LR)), every=3)
    train(model, optimizer, 2)
    before = hvd.allreduce(
        model[0].weight.detach() - float(LR) * torch.from_numpy(gradient(hvd.rank(), 2, "0.weight", (40, 7)))
    )
    train(model, optimizer, 1, 2)
    torch.testing.assert_close(model[0].weight.detach(), before)
    optimizer.finish()
    assert Options(every=3, outer=AVERAGE).outer.lr == 1
    return bits_of(model)
