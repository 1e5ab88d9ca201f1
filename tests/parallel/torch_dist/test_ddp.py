# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel with the horovod backend gives the bits of Gloo, in all its modes."""

from itertools import pairwise
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from harness.torch_groups import on_torch_ranks, process_group
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.timeout(150)

STEPS = 20
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}
SMALL_BUCKETS = {"bucket_cap_mb": 0.001}


def network():
    torch.manual_seed(3)
    layers = [torch.nn.Linear(inputs, outputs) for inputs, outputs in pairwise((8, 32, 32, 16, 4))]
    return torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.Tanh(), layers[2], layers[3])


def batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(6, 8, generator=generator), torch.randn(6, 4, generator=generator)


def train(model, rank, optimizer="sgd", steps=STEPS, accumulate=False):
    update = OPTIMIZERS[optimizer](model.parameters())
    for step in range(steps):
        update.zero_grad()
        if accumulate:
            with model.no_sync():
                inputs, targets = batch(rank, 1000 + step)
                torch.nn.functional.mse_loss(model(inputs), targets).backward()
        inputs, targets = batch(rank, step)
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        update.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def over(group, model=None, hook=None, **options):
    wrapped = DistributedDataParallel(model or network(), process_group=group, **SMALL_BUCKETS, **options)
    if hook is not None:
        wrapped.register_comm_hook(None, hook)
    return wrapped


@on_torch_ranks("shm2")
def test_the_same_bits_as_over_gloo():
    with process_group() as (rank, _):
        gloo = dist.new_group(backend="gloo")
        for optimizer in OPTIMIZERS:
            ours, theirs = train(over(None), rank, optimizer), train(over(gloo), rank, optimizer)
            assert torch.equal(ours, theirs)
            assert not torch.equal(ours, train(network(), rank, optimizer)), "the gradients were not exchanged"


@pytest.mark.checked_numbers("DistributedDataParallel in every mode", against="the same over Gloo, bit for bit")
@on_torch_ranks("shm2")
def test_every_mode_gives_the_same_bits_as_over_gloo():
    modes = [
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"hook": default_hooks.fp16_compress_hook},
    ]
    with process_group() as (rank, _):
        gloo = dist.new_group(backend="gloo")
        for mode in modes:
            ours, theirs = train(over(None, **mode), rank, steps=5), train(over(gloo, **mode), rank, steps=5)
            assert torch.equal(ours, theirs), mode
        assert torch.equal(train(over(None), rank, accumulate=True), train(over(gloo), rank, accumulate=True))


@pytest.mark.checked_numbers("DistributedDataParallel at 4 ranks", against="a single process")
@on_torch_ranks("hosts4")
def test_four_ranks_agree_with_one_process():
    with process_group() as (rank, size):
        ours = train(over(None), rank, "adam", steps=5)
        whole = network()
        update = OPTIMIZERS["adam"](whole.parameters())
        for step in range(5):
            update.zero_grad()
            inputs, targets = zip(*[batch(other, step) for other in range(size)], strict=True)
            torch.nn.functional.mse_loss(whole(torch.cat(inputs)), torch.cat(targets)).backward()
            update.step()
        expected = torch.cat([parameter.detach().reshape(-1) for parameter in whole.parameters()])
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
        return ours.tolist()  # equal on all ranks


@on_torch_ranks("shm2")
def test_a_hook_that_waits_inside_a_callback():
    """PowerSGD's callbacks wait for collectives that they start themselves."""
    with process_group() as (rank, _):
        # One bucket, because with several the order of such collectives is not defined.
        model = DistributedDataParallel(network())
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        # If torch sees a GPU, the hook synchronises the tensors' device through CUDA, also if that device is the CPU,
        # which CUDA refuses.
        with mock.patch.object(torch.cuda, "is_available", return_value=False):
            return train(model, rank, steps=5).tolist()


@on_torch_ranks("shm2")
def test_unused_parameters_batch_norm_and_uneven_inputs():
    class TwoHeads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
            self.used, self.sometimes = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, inputs, head):
            return (self.sometimes if head else self.used)(self.body(inputs))

    with process_group() as (rank, _):
        torch.manual_seed(rank)  # DDP broadcasts rank 0's parameters and buffers
        model = DistributedDataParallel(TwoHeads(), find_unused_parameters=True)
        update = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for step in range(3 + rank):
                update.zero_grad()
                model(batch(rank, step)[0], head=step % 2).square().mean().backward()
                update.step()
        return [parameter.tolist() for parameter in model.module.parameters()]  # join broadcasts those of the last rank
