# SPDX-License-Identifier: Apache-2.0
"""Small training that each rank can also run alone: K workers on K shards must equal one worker on the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch.nn import functional

import horovod.torch as hvd
from harness.worlds import on_all_ranks

Tensor = torch.Tensor
MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
ROWS_PER_RANK = 8

# The first body in a world imports torch and its compiler on all ranks at once, which takes long on few cores.
on_torch_ranks = partial(on_all_ranks, limit_s=120)

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=1e-4),
    "adam": lambda parameters: torch.optim.Adam(parameters, 1e-3),
}


def make_model() -> torch.nn.Module:
    """Return a model with a convolution, group normalisation and a linear layer, and equal weights on every rank."""
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.GroupNorm(2, 4),
        torch.nn.Tanh(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 36, 10),
    )


def batches(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the whole batch of each step, equal on all ranks."""
    generator = torch.Generator().manual_seed(11)
    rows = ROWS_PER_RANK * hvd.size()
    for _ in range(steps):
        yield torch.randn(rows, 1, 8, 8, generator=generator), torch.randint(0, 10, (rows,), generator=generator)


def shard(tensor: Tensor) -> Tensor:
    """Return this rank's part of a batch."""
    return tensor[hvd.rank() * ROWS_PER_RANK : (hvd.rank() + 1) * ROWS_PER_RANK]


def loss_of(model: torch.nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(model(images), labels)


def weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def train_alone(make_optimizer: MakeOptimizer, steps: int) -> Tensor:
    """Return the weights after training on whole batches in this process alone."""
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    for images, labels in batches(steps):
        optimizer.zero_grad()
        loss_of(model, images, labels).backward()
        optimizer.step()
    return weights(model)


def check_same_weights(model: torch.nn.Module, expected: Tensor, tolerance: float = 2e-6) -> str:
    """Check that the weights are close to the expected ones; return their bits, for the comparison between ranks."""
    torch.testing.assert_close(weights(model), expected, rtol=0, atol=tolerance)
    return weights(model).numpy().tobytes().hex()[:4000]
