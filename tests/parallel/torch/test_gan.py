# SPDX-License-Identifier: Apache-2.0
"""A GAN: two backward passes for the discriminator, and a third one whose gradients are dropped."""

import pytest
import torch
from harness.torch_training import on_torch_ranks
from torch.nn.functional import softplus

import horovod.torch as hvd

ROWS, STEPS = 4, 4  # rows of each rank in a step, number of steps
MAX_NORM = 0.05  # so small that every step clips the discriminator's gradients


def make():
    """Return a generator and a discriminator whose parameters have equal names."""
    torch.manual_seed(3)
    layers = torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5)
    return torch.nn.Sequential(*layers), torch.nn.Sequential(
        torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    )


def rows_of(step, count, ranks):
    whole = torch.randn(ROWS * hvd.size(), count, generator=torch.Generator().manual_seed(10 * step + count))
    return torch.cat([whole[ROWS * rank : ROWS * (rank + 1)] for rank in ranks])


def train(models, optimizers, ranks, by_module=False):
    """Train as the usual loop does. With `by_module`, drop gradients through the modules, not the optimizers."""
    generator, discriminator = models
    generating, judging = models if by_module else optimizers
    for step in range(STEPS):
        judging.zero_grad()
        softplus(-discriminator(rows_of(step, 5, ranks))).mean().backward()
        made = generator(rows_of(step, 2, ranks))
        softplus(discriminator(made.detach())).mean().backward()
        if by_module and len(ranks) == 1:
            optimizers[1].synchronize()
            torch.nn.utils.clip_grad_norm_(discriminator.parameters(), MAX_NORM)
            with optimizers[1].skip_synchronize():
                optimizers[1].step()
        else:
            torch.nn.utils.clip_grad_norm_(discriminator.parameters(), MAX_NORM)
            optimizers[1].step()
        generating.zero_grad()
        softplus(-discriminator(made)).mean().backward()
        optimizers[0].step()
    return [it.detach() for model in models for it in model.parameters()]


def plain(models):
    return [torch.optim.SGD(model.parameters(), 0.5, momentum=0.5) for model in models]


@pytest.mark.checked_numbers(
    "weights of a GAN whose discriminator has two backward() calls", against="a single process"
)
@pytest.mark.parametrize(("passes", "by_module"), [(2, False), (3, True)])
@on_torch_ranks("shm2")
def test_a_gan_with_several_backward_calls(passes, by_module):
    alone, models = make(), make()
    expected = train(alone, plain(alone), range(hvd.size()))
    options = {}, {"backward_passes_per_step": passes}
    optimizers = [
        hvd.DistributedOptimizer(optimizer, model.named_parameters(), **more)
        for optimizer, model, more in zip(plain(models), models, options, strict=True)
    ]
    weights = train(models, optimizers, [hvd.rank()], by_module)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-6)
    return [it.tolist() for it in weights]


@on_torch_ranks("shm2")
def test_zero_grad_begins_a_window_anew():
    """A rank that drops a partial window contributes the gradients that it computes afterwards."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0), [("w", weight)], backward_passes_per_step=2)
    weight.sum().backward()
    optimizer.zero_grad()
    for factor in (3.0, 5.0):
        (factor * (hvd.rank() + 1) * weight.sum()).backward()
    assert weight.grad.item() == 12.0  # complete after the second pass of the new window
    optimizer.step()
    optimizer.zero_grad()
    (7.0 * weight.sum()).backward()
    if hvd.rank() == 1:
        optimizer.zero_grad()
        weight.sum().backward()
    optimizer.step()
    assert weight.item() == -12.0 - (7.0 + 1.0) / 2
    return weight.item()
