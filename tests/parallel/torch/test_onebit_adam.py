# SPDX-License-Identifier: Apache-2.0
"""hvd.OneBitAdam: Adam in the warm-up, then values of a simulation; the end of the warm-up, saved states, sets."""

import copy
import math

import numpy as np
import pytest
import torch
from harness.compressed_exchange import Simulation, onebit
from harness.torch_training import on_torch_ranks as on_ranks

import horovod.torch as hvd
from horovod.common.context import default_context
from horovod.torch.elastic import TorchState
from horovod.torch.onebit_adam import _OneBitAdam

COUNT = 5 * 4096 + 300
STEPS = 7
BETAS = (0.9, 0.99)


def gradient(rank, step):
    return np.random.default_rng(100 * step + rank).standard_normal(COUNT).astype(np.float32) + 0.5


class Training:
    def __init__(self, freeze_after=3, scaler=None, betas=BETAS, **options):
        self.big, self.small = torch.nn.Parameter(torch.zeros(COUNT)), torch.nn.Parameter(torch.zeros(20))
        named = [("big", self.big), ("small", self.small)]
        parameters = [it for _, it in named]
        options = {"named_parameters": named, "freeze_after": freeze_after, **options}
        self.optimizer = hvd.OneBitAdam(parameters, 1e-2, betas, weight_decay=0.1, **options)
        self.scaler = scaler

    def step(self, array):
        self.optimizer.zero_grad()
        values = torch.from_numpy(array)
        loss = (self.big * values).sum() + (self.small * values[:20]).sum()
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def weights(self):
        return torch.cat([self.big.detach(), self.small.detach()])

    def state(self):
        return copy.deepcopy((self.weights(), self.optimizer.state_dict(), self.optimizer.comm_hook.state_dict()))

    def load(self, state):
        weights, optimizer, hook = copy.deepcopy(state)
        with torch.no_grad():
            self.big.copy_(weights[:COUNT])
            self.small.copy_(weights[COUNT:])
        self.optimizer.load_state_dict(optimizer)
        self.optimizer.comm_hook.load_state_dict(hook)


class Reference:
    """1-bit Adam of the compressed tensor, computed for all ranks in NumPy."""

    def __init__(self, hosts, freeze_after=3):
        self.simulation = Simulation(hosts, onebit(), two_stages=True)
        self.freeze_after, self.step_number = freeze_after, 0
        self.w, self.m, self.v = (np.zeros(COUNT) for _ in range(3))

    def step(self, gradients):
        self.step_number += 1
        first, second = BETAS
        if self.step_number <= self.freeze_after + 1:
            mean = np.mean(gradients, 0)
            self.m = first * self.m + (1 - first) * mean
            self.v = second * self.v + (1 - second) * mean.astype(np.float64) ** 2
        else:
            divisor = np.sqrt(self.v / (1 - second ** (self.freeze_after + 1))) + 1e-8
            own = [((first * self.m + (1 - first) * it) / divisor).astype(np.float32) for it in gradients]
            self.m = self.simulation.step(own).astype(np.float64) * divisor
        corrected = 1 - second ** min(self.step_number, self.freeze_after + 1)
        self.w *= 1 - 1e-2 * 0.1
        self.w -= 1e-2 / (1 - first**self.step_number) * self.m / (np.sqrt(self.v / corrected) + 1e-8)
        if self.step_number == self.freeze_after + 1:
            self.v = np.maximum(self.v, 1e-4 * self.v.mean())


@on_ranks("hosts3", "hosts4")
@pytest.mark.parametrize("scope", ["host", "all"])
def test_weights_are_those_of_one_process(scope):
    training = Training(scope=scope)
    hosts = hvd.allgather_object(default_context.topology.host) if scope == "host" else list(range(hvd.size()))
    reference = Reference(hosts)
    small = torch.nn.Parameter(torch.zeros(20))
    adam = torch.optim.AdamW([small], 1e-2, BETAS, weight_decay=0.1)
    for step in range(STEPS):
        gradients = [gradient(rank, step) for rank in range(hvd.size())]
        training.step(gradients[hvd.rank()])
        reference.step(gradients)
        np.testing.assert_allclose(training.big.detach().numpy(), reference.w, rtol=1e-3, atol=2e-5)
        small.grad = torch.from_numpy(np.mean(gradients, 0)[:20].copy())
        adam.step()
        # This tensor is too small to be compressed, so torch's Adam is the reference.
        torch.testing.assert_close(training.small, small, rtol=1e-4, atol=1e-6)
    state = training.optimizer.state[training.big]
    assert (int(state["frozen_at"]), int(training.optimizer.state[training.small]["frozen_at"])) == (4, 0)
    return training.weights().numpy().tobytes().hex()[:4000]  # all ranks must return equal bits


@on_ranks("hosts3")
def test_saved_states_and_commits_go_on_bit_by_bit():
    gradients = [gradient(hvd.rank(), step) for step in range(STEPS)]
    whole, first, rest = Training(), Training(), Training()
    for it in gradients:
        whole.step(it)
    for it in gradients[:5]:
        first.step(it)
    rest.load(first.state())
    for it in gradients[5:]:
        rest.step(it)
    assert torch.equal(rest.weights(), whole.weights())

    model = torch.nn.ParameterDict({"big": first.big, "small": first.small})
    commits = TorchState(model=model, optimizer=first.optimizer)
    first.step(gradient(hvd.rank(), 50))
    commits.restore()
    for it in gradients[5:]:
        first.step(it)
    assert torch.equal(first.weights(), whole.weights())


@on_ranks("hosts3")
def test_a_scaler_that_halves_its_scale_changes_nothing():
    if not hasattr(torch.amp, "GradScaler"):
        return None
    plain = Training()
    scaled = Training(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4))
    for step in range(STEPS):
        if step in (2, 5):
            spoilt = gradient(hvd.rank(), 60)
            spoilt[5 * 4096] = np.inf if hvd.rank() == 2 else 0.0
            scaled.step(spoilt)
        plain.step(gradient(hvd.rank(), step))
        scaled.step(gradient(hvd.rank(), step))
    torch.testing.assert_close(scaled.weights(), plain.weights(), rtol=1e-4, atol=1e-6)
    assert scaled.optimizer.is_frozen
    return scaled.weights()[:500].tolist()


@on_ranks("hosts3")
def test_the_variance_decides_when_the_warm_up_ends_and_sets_go_their_own_ways():
    pair = hvd.add_process_set([0, 2])
    training = Training(freeze_after=None, betas=(0.9, 0.9), lr_warmup_steps=30)
    alone = Training(freeze_after=None, betas=(0.9, 0.9), process_set=pair)
    frozen = {}
    for step in range(32):
        for number, it in enumerate((training, alone)):
            it.step(gradient(hvd.rank(), step))
            if it.optimizer.is_frozen:
                frozen.setdefault(number, step)
    assert frozen[0] == 30
    if hvd.rank() != 1:
        assert 10 <= frozen[1] < 30
    hvd.remove_process_set(pair)
    return training.weights()[:500].tolist()


@on_ranks("hosts3")
def test_values_without_gradients_in_the_warm_up_make_no_enormous_steps():
    training = Training(freeze_after=2)
    for step in range(12):
        array = gradient(hvd.rank(), step)
        array[:6000] = 0.0 if step < 8 else 1.0
        training.step(array)
    assert training.weights().abs().max() < 12 * 1e-2 * 110


@on_ranks("shm2")
def test_on_one_host_it_is_adam_for_good():
    training = Training(freeze_after=1)
    weights = torch.nn.Parameter(torch.zeros(COUNT))
    adam = torch.optim.AdamW([weights], 1e-2, BETAS, weight_decay=0.1)
    for step in range(4):
        training.step(gradient(hvd.rank(), step))
        weights.grad = torch.from_numpy(np.mean([gradient(rank, step) for rank in range(hvd.size())], 0))
        adam.step()
    torch.testing.assert_close(training.big, weights, rtol=1e-4, atol=1e-6)
    assert not training.optimizer.is_frozen


@on_ranks("shm2")
def test_wrong_arguments():
    parameter = torch.nn.Parameter(torch.zeros(3))
    for options, text in (
        ({"betas": (1.0, 0.9)}, "betas must be two numbers"),
        ({"lr": -1.0}, "lr and weight_decay must be at least 0"),
        ({"eps": math.nan}, "eps above 0"),
        ({"freeze_after": 0}, "freeze_after None or at least 1"),
        ({"scope": "hosts"}, "onebit: scope must be 'host' or 'all'"),
        ({"exclude": ["nothing"]}, "exclude='nothing' matches no name"),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.OneBitAdam([parameter], **{"named_parameters": [("p", parameter)], **options})
    with pytest.raises(ValueError, match="already a hvd.DistributedOptimizer"):
        hvd.DistributedOptimizer(hvd.OneBitAdam([parameter]))
    assert isinstance(hvd.OneBitAdam([parameter]), _OneBitAdam)
