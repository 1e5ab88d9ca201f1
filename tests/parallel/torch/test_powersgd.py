# SPDX-License-Identifier: Apache-2.0
"""PowerSGD in DistributedOptimizer: simulated values, full rank, equal factors, exact bytes, saved states, NaN."""

import logging

import numpy as np
import pytest
import torch
from harness.stateful_exchange import PowerSimulation
from harness.torch_training import on_torch_ranks as on_ranks

import horovod.torch as hvd
from horovod.common.context import default_context
from horovod.common.log import logger

SHAPE = (90, 70)
STEPS = 5


def method_of(rank=2, start_after=2, **more):
    return hvd.Compression.powersgd(rank, start_after, **{"min_bytes": 0, "min_rate": 0.01, **more})


def gradient(rank, step, shape=SHAPE):
    return np.random.default_rng(100 * step + rank).standard_normal(shape).astype(np.float32) * (1 + step)


class Training:
    """Training of a matrix with given gradients, and optionally of a vector that gets the gradient of its first row."""

    def __init__(self, method, shape=SHAPE, with_vector=False, **options):
        self.matrix = torch.nn.Parameter(torch.zeros(shape))
        self.vector = torch.nn.Parameter(torch.zeros(shape[1]))
        named = [("matrix", self.matrix), *([("vector", self.vector)] if with_vector else [])]
        sgd = torch.optim.SGD([it for _, it in named], lr=1.0)
        self.optimizer = hvd.DistributedOptimizer(sgd, named, compression=method, **options)
        self.with_vector = with_vector

    def step(self, array):
        self.optimizer.zero_grad()
        values = torch.from_numpy(array)
        loss = (self.matrix * values).sum()
        (loss + (self.vector * values[0]).sum() if self.with_vector else loss).backward()
        self.optimizer.step()
        return self.matrix.grad.clone()

    @property
    def hook(self):
        return self.optimizer.comm_hook

    def q(self):
        return self.hook.state_dict()["buckets"][0]["shared"]["q"]


def hosts_of(scope):
    return list(range(hvd.size())) if scope == "all" else hvd.allgather_object(default_context.topology.host)


@on_ranks("shm2", "hosts3", "hosts4")
@pytest.mark.parametrize(("scope", "feedback"), [("host", True), ("all", True), ("host", False)])
def test_values_are_those_of_one_process(scope, feedback):
    method = method_of(scope=scope, error_feedback=feedback)
    training, hosts = Training(method, with_vector=True), hosts_of(scope)
    simulated = PowerSimulation(hosts, SHAPE, method)
    for step in range(STEPS):
        found = training.step(gradient(hvd.rank(), step))
        gradients = [gradient(rank, step) for rank in range(hvd.size())]
        expected = np.mean(gradients, 0) if len(set(hosts)) == 1 else simulated.step(gradients)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(training.vector.grad, np.mean(gradients, 0)[0], rtol=1e-5, atol=1e-5)
    buckets = training.hook.state_dict()["buckets"]
    if len(set(hosts)) == 1:
        assert buckets == {}, "on one host the engine reduces the gradients themselves"
        return training.matrix.detach().numpy().tobytes().hex()[:4000]
    kept = buckets[0]
    assert ("residual" in kept["memory"]) == feedback
    # The weights and Q must be equal on all ranks, bit for bit.
    return training.matrix.detach().numpy().tobytes().hex()[:4000], [it.tolist() for it in kept["shared"].values()]


@on_ranks("hosts3", "hosts4")
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize("shape", [(6, 40), (40, 1, 6), (1, 5)])
def test_full_rank_is_the_dense_allreduce(shape, op):
    training = Training(method_of(rank=min(shape[0], shape[-1]), start_after=0), shape, op=op)
    for step in range(3):
        found = training.step(gradient(hvd.rank(), step, shape))
        gradients = [gradient(rank, step, shape) for rank in range(hvd.size())]
        expected = np.sum(gradients, 0) if op == hvd.Sum else np.mean(gradients, 0)
        assert np.abs(found.numpy() - expected).max() <= 1e-5 * np.abs(expected).max()


@on_ranks("tcp2", "hosts4")
def test_the_factors_are_all_that_a_step_sends():

    def sent(rank):
        training = Training(method_of(rank, start_after=0, scope="all" if hvd.size() == 2 else "host"), (4096, 1024))
        array = np.random.default_rng(hvd.rank()).standard_normal((4096, 1024)).astype(np.float32)
        training.step(array)
        hvd.barrier()
        before = hvd.counters()["data_bytes_sent"]
        training.step(array)
        moved = hvd.counters()["data_bytes_sent"] - before
        return sum(hvd.allgather_object(moved))

    thin, thick = sent(4), sent(8)
    factors = 2 * 4 * 4 * (4096 + 1024)  # bytes of factors of rank 4 in both directions
    # The negotiation messages may take a few bytes more or less.
    assert abs(thick - thin - factors) < 1000
    assert factors <= thin < factors + 1000


@on_ranks("hosts3")
def test_a_saved_state_goes_on_bit_by_bit():
    gradients = [gradient(hvd.rank(), step) for step in range(6)]
    whole, first, rest = (Training(method_of()) for _ in range(3))
    expected = [whole.step(it) for it in gradients]
    for it in gradients[:4]:
        first.step(it)
    rest.hook.load_state_dict(first.hook.state_dict())
    for found, it in zip(map(rest.step, gradients[4:]), expected[4:], strict=True):
        assert torch.equal(found, it)


@on_ranks("hosts3")
def test_ranks_without_the_first_ones_state_take_over_its_factors():
    gradients = [gradient(hvd.rank(), step) for step in range(4)]
    first, rest = Training(method_of(start_after=1)), Training(method_of(start_after=1))
    for it in gradients[:3]:
        first.step(it)
    if hvd.rank() == 0:
        rest.hook.load_state_dict(first.hook.state_dict())
    rest.step(gradients[3])
    assert rest.hook.state_dict()["buckets"][0]["steps"] == 4
    return rest.q().tolist(), rest.matrix.tolist()


@on_ranks("hosts4")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_value_on_one_rank_spoils_the_step_everywhere_and_nothing_that_is_kept(bad):
    good = [gradient(hvd.rank(), step) for step in range(4)]
    spoilt = gradient(hvd.rank(), 7)
    if hvd.rank() == 1:
        spoilt[80, 3] = bad
    with_bad, without = Training(method_of(start_after=1)), Training(method_of(start_after=1))
    found = [with_bad.step(it) for it in [good[0], spoilt, *good[1:3], spoilt, good[3]]]
    expected = [without.step(it) for it in good]
    assert not torch.isfinite(found[1]).all()
    assert not torch.isfinite(found[4]).all()
    assert torch.equal(found[5], expected[3])
    assert str(with_bad.hook.state_dict()) == str(without.hook.state_dict())


@on_ranks("hosts4")
def test_two_optimizers_a_process_set_and_several_passes():
    pairs = hvd.add_process_set([0, 2])  # one rank of each host
    first = Training(method_of(start_after=0), backward_passes_per_step=2)
    second = Training(method_of(start_after=0, seed=1), process_set=pairs)
    for step in range(3):
        for optimizer in (first.optimizer, second.optimizer):
            optimizer.zero_grad()
        values = torch.from_numpy(gradient(hvd.rank(), step))
        (first.matrix * values).sum().backward()
        ((first.matrix + second.matrix) * values).sum().backward()  # one backward pass through both
        first.optimizer.step()
        second.optimizer.step()
    weights = hvd.allgather_object((first.matrix.tolist(), second.matrix.tolist()))
    assert all(it[0] == weights[0][0] for it in weights)
    assert weights[0][1] == weights[2][1] != weights[1][1]
    hvd.remove_process_set(pairs)


@on_ranks("hosts3")
def test_the_log_says_which_scope_is_in_use():
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        for scope in ("host", "all"):
            Training(method_of(start_after=0, scope=scope)).step(gradient(hvd.rank(), 0))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert [it for it in said if "compresses what travels" in it] == (
        [
            "powersgd, scope='host': compresses what travels between the 2 hosts",
            "powersgd, scope='all': compresses what travels between the 3 ranks",
        ]
        if hvd.rank() == 0
        else []
    )
