# SPDX-License-Identifier: Apache-2.0
"""Deep Gradient Compression in DistributedOptimizer: values of a simulation, dense momentum, saved states, errors."""

import numpy as np
import pytest
import torch
from harness.stateful_exchange import DgcSimulation
from harness.torch_training import on_torch_ranks as on_ranks

import horovod.torch as hvd
from horovod.common.context import default_context

COUNT = 5 * 4096 + 300
SMALL = 50
STEPS = 5
ARGUMENTS = {"ratio": 0.02, "momentum": 0.9, "ramp": (0.75, 0.9), "ramp_steps": 1}


def gradient(rank, step, count=COUNT):
    return np.random.default_rng(100 * step + rank).standard_normal(count).astype(np.float32) * (1 + step)


class Training:
    """Training of a large tensor, which is compressed, and a small one, which is not."""

    def __init__(self, **arguments):
        method = hvd.Compression.dgc(**{**ARGUMENTS, **arguments})
        self.big, self.small = torch.nn.Parameter(torch.zeros(COUNT)), torch.nn.Parameter(torch.zeros(SMALL))
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([self.big, self.small], lr=1.0),
            [("big", self.big), ("small", self.small)],
            compression=method,
        )
        self.method = method

    def step(self, array):
        self.optimizer.zero_grad()
        values = torch.from_numpy(array)
        ((self.big * values).sum() + (self.small * values[:SMALL]).sum()).backward()
        self.optimizer.step()
        return self.big.grad.clone()

    @property
    def hook(self):
        return self.optimizer.comm_hook


@on_ranks("hosts3", "hosts4")
@pytest.mark.parametrize("scope", ["host", "all"])
def test_values_are_those_of_one_process(scope):
    training = Training(scope=scope)
    hosts = hvd.allgather_object(default_context.topology.host) if scope == "host" else list(range(hvd.size()))
    simulated, velocity = DgcSimulation(hosts, training.method), np.zeros(SMALL, np.float32)
    for step in range(STEPS):
        found = training.step(gradient(hvd.rank(), step))
        gradients = [gradient(rank, step) for rank in range(hvd.size())]
        np.testing.assert_allclose(found.numpy(), simulated.step(gradients), rtol=1e-4, atol=1e-5)
        velocity = np.float32(0.9) * velocity + np.mean(gradients, 0)[:SMALL]
        np.testing.assert_allclose(training.small.grad.numpy(), velocity, rtol=1e-4, atol=1e-5)
    return found.numpy().tobytes().hex()[:4000], training.small.grad.tolist()  # all ranks must return equal bits


@on_ranks("one", "shm2")
def test_on_one_host_it_is_the_momentum_of_sgd():
    training = Training()
    velocity = np.zeros(COUNT, np.float32)
    for step in range(3):
        found = training.step(gradient(hvd.rank(), step))
        velocity = np.float32(0.9) * velocity + np.mean([gradient(rank, step) for rank in range(hvd.size())], 0)
        np.testing.assert_allclose(found.numpy(), velocity, rtol=1e-4, atol=1e-5)


@on_ranks("hosts3")
def test_each_rank_clips_its_gradients():
    clipped, small = Training(clip=1.0), Training()
    array = gradient(hvd.rank(), 0)
    whole = np.concatenate([array, array[:SMALL]])
    factor = np.float32(1.0 / hvd.size() ** 0.5 / np.linalg.norm(whole))
    found, expected = clipped.step(array), small.step(array * factor)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-4, atol=1e-8)
    np.testing.assert_allclose(clipped.small.grad.numpy(), small.small.grad.numpy(), rtol=1e-4, atol=1e-8)


@on_ranks("hosts3")
def test_a_saved_state_goes_on_bit_by_bit_and_a_bad_value_spoils_nothing_that_is_kept():
    gradients = [gradient(hvd.rank(), step) for step in range(STEPS)]
    whole, first, rest = Training(), Training(), Training()
    expected = [whole.step(it) for it in gradients]
    for it in gradients[:2]:
        first.step(it)
    spoilt = gradient(hvd.rank(), 9)
    spoilt[hvd.rank()] = np.inf if hvd.rank() == 2 else 0.0
    assert not torch.isfinite(first.step(spoilt)).all()
    rest.hook.load_state_dict(first.hook.state_dict())
    for it, wanted in zip(gradients[2:], expected[2:], strict=True):
        assert torch.equal(rest.step(it), wanted)
    return rest.small.grad.tolist()


@on_ranks("shm2")
def test_an_optimizer_with_momentum_is_refused():
    parameter = torch.nn.Parameter(torch.zeros(8))
    sgd = torch.optim.SGD([parameter], lr=1.0, momentum=0.9)
    with pytest.raises(ValueError, match=r"compression=dgc\(.* give the optimizer momentum=0"):
        hvd.DistributedOptimizer(sgd, [("p", parameter)], compression=hvd.Compression.dgc(0.1, 0.9))
