# SPDX-License-Identifier: Apache-2.0
"""Compressed gradients against a simulation in one process: values, residuals, NaN, saved states, refused options."""

import numpy as np
import pytest
import torch
from harness.compressed_exchange import Simulation, int8, onebit, topk
from harness.torch_training import on_torch_ranks as on_ranks

import horovod.torch as hvd
from horovod.common.compression_methods import Int8, OneBit, TopK
from horovod.common.context import default_context
from horovod.torch.compressing import CompressionHook
from horovod.torch.gradients.known_optimizers import _hooked

COUNT = 5 * 4096 + 300
STEPS = 4
METHODS = {
    "int8": (Int8, {"block": 256}, int8(256), True),
    "onebit": (OneBit, {}, onebit(), True),
    "topk": (TopK, {"ratio": 0.05}, topk(0.05), False),
}


def hosts_of_ranks():
    return hvd.allgather_object(default_context.topology.host)


def gradient(rank, step, count=COUNT):
    return np.random.default_rng(100 * step + rank).standard_normal(count).astype(np.float32) * (1 + step)


def train(method, gradients, state=None, parameters=None):
    """Make one step for each gradient. Return the reduced gradients and the hook."""
    parameter = torch.nn.Parameter(torch.zeros(len(gradients[0])))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), [("p", parameter)])
    hook = CompressionHook(method)
    if state is not None:
        hook.load_state_dict(state)
    hvd.register_comm_hook(optimizer, hook)
    reduced = []
    for it in gradients:
        optimizer.zero_grad()
        (parameter * torch.from_numpy(it)).sum().backward()
        optimizer.step()
        reduced.append(parameter.grad.clone())
    return reduced, hook


@on_ranks("shm2", "hosts3", "hosts4")
@pytest.mark.parametrize(("scope", "feedback"), [("host", True), ("all", True), ("host", False)])
@pytest.mark.parametrize("kind", METHODS)
def test_values_are_those_of_one_process(kind, scope, feedback):
    make, arguments, codec, two_stages = METHODS[kind]
    method = make(**arguments, scope=scope, error_feedback=feedback)
    reduced, _ = train(method, [gradient(hvd.rank(), step) for step in range(STEPS)])
    hosts = hosts_of_ranks() if scope == "host" else list(range(hvd.size()))
    simulated = Simulation(hosts, codec, two_stages, feedback)
    for step, found in enumerate(reduced):
        gradients = [gradient(rank, step) for rank in range(hvd.size())]
        expected = np.mean(gradients, 0) if len(set(hosts)) == 1 else simulated.step(gradients)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
    return reduced[-1].numpy().tobytes().hex()[:4000]  # all ranks must return equal bits


@on_ranks("shm2", "shm4")
@pytest.mark.parametrize("kind", METHODS)
def test_on_one_host_gradients_are_reduced_where_they_are(kind):
    """One parameter is frozen on all ranks but rank 0, and another one is used by rank 0 only."""
    make, arguments, *_ = METHODS[kind]

    def trained(compression, **options):
        parameters = [torch.nn.Parameter(torch.ones(COUNT)) for _ in range(4)]
        parameters[1].requires_grad_(hvd.rank() == 0)
        named = [(f"p{number}", it) for number, it in enumerate(parameters)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(parameters, lr=1.0), named, compression=compression, **options
        )
        for step in range(3):
            optimizer.zero_grad()
            used = parameters[:2] if hvd.rank() else parameters[:3]
            values = torch.from_numpy(gradient(hvd.rank(), step))
            sum((it * values).sum() for it in used).backward()
            optimizer.step()
        reducer = optimizer._reducer
        return [it.detach().numpy().tobytes() for it in parameters], reducer._gradients, reducer._known in _hooked

    expected, *_ = trained(hvd.Compression.none)
    found, gradients, exchanges_as_with_a_hook = trained(make(**arguments))
    assert found == expected
    assert gradients.groups == []  # no buckets: the native call of an optimizer without compression submits them
    assert gradients.bundles
    assert not exchanges_as_with_a_hook
    found, gradients, _ = trained(make(**arguments), groups=2)
    assert found == expected
    assert all(group.bucket._tensor is None for group in gradients.groups)  # no gradient is copied into a bucket


@on_ranks("hosts3")
@pytest.mark.parametrize("kind", METHODS)
def test_buckets_are_made_when_a_second_host_comes(kind):
    """The first era is taken for one on one host. A parameter is frozen in it, and another one is unfrozen later."""
    make, arguments, codec, two_stages = METHODS[kind]
    parameters = [torch.nn.Parameter(torch.zeros(COUNT)) for _ in range(2)]
    parameters[1].requires_grad_(False)
    named = [(f"p{number}", it) for number, it in enumerate(parameters)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), named)
    hook = CompressionHook(make(**arguments))
    hook.leaves_gradients = lambda: True
    hvd.register_comm_hook(optimizer, hook)
    simulated = [Simulation(hosts_of_ranks(), codec, two_stages) for _ in parameters]

    def step(number):
        optimizer.zero_grad()
        values = torch.from_numpy(gradient(hvd.rank(), number))
        sum((it * values).sum() for it in parameters if it.requires_grad).backward()
        optimizer.step()
        return [gradient(rank, number) for rank in range(hvd.size())]

    for number in range(2):
        if number:
            parameters[1].requires_grad_()
        gradients = step(number)
        np.testing.assert_allclose(parameters[number].grad.numpy(), np.mean(gradients, 0), rtol=1e-5, atol=1e-6)
    assert not optimizer._reducer._gradients.groups
    hook.leaves_gradients = lambda: False
    hvd.join()
    for number in range(2, 4):
        gradients = step(number)
        assert len(optimizer._reducer._gradients.groups) == 2
        for it, one in zip(parameters, simulated, strict=True):
            np.testing.assert_allclose(it.grad.numpy(), one.step(gradients), rtol=1e-4, atol=1e-5)
    return [it.grad.numpy().tobytes().hex()[:2000] for it in parameters]


@on_ranks("shm2")
def test_buckets_on_some_ranks_do_not_keep_the_others_waiting():
    """Rank 0 has buckets from an era with two hosts, rank 1 is new. One parameter gets no gradient."""
    parameters = [torch.nn.Parameter(torch.zeros(COUNT)) for _ in range(2)]
    named = [(f"p{number}", it) for number, it in enumerate(parameters)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), named)
    hook = CompressionHook(Int8())
    hook.leaves_gradients = lambda: hvd.rank() > 0
    hvd.register_comm_hook(optimizer, hook)
    hook.leaves_gradients = lambda: True
    assert len(optimizer._reducer._gradients.groups) == (hvd.rank() == 0)
    for number in range(3):
        optimizer.zero_grad()
        (parameters[0] * torch.from_numpy(gradient(hvd.rank(), number))).sum().backward()
        optimizer.step()
        expected = np.mean([gradient(rank, number) for rank in range(hvd.size())], 0)
        np.testing.assert_allclose(parameters[0].grad.numpy(), expected, rtol=1e-5, atol=1e-6)


@on_ranks("hosts4")
@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("count", [1, 4096, 4097])
def test_fewer_values_than_shares_have_room_for(kind, count):
    make, arguments, codec, two_stages = METHODS[kind]
    reduced, _ = train(make(**arguments, min_bytes=0), [gradient(hvd.rank(), step, count) for step in range(2)])
    simulated = Simulation(hosts_of_ranks(), codec, two_stages)
    for step, found in enumerate(reduced):
        expected = simulated.step([gradient(rank, step, count) for rank in range(hvd.size())])
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


@on_ranks("hosts3")
def test_float64_that_stays_dense_keeps_its_digits():
    """One compressed gradient has only the accuracy of one bit; the gradient that stays dense keeps all digits."""
    big, small = torch.nn.Parameter(torch.zeros(20_000).double()), torch.nn.Parameter(torch.zeros(3).double())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([big, small], lr=1.0), [("big", big), ("small", small)], compression=hvd.Compression.onebit()
    )
    value = 1.0 + 1e-12 * hvd.rank()
    (big.sum() * value + small.sum() * value).backward()
    optimizer.step()
    assert small.grad.dtype is big.grad.dtype is torch.float64
    np.testing.assert_allclose(small.grad.numpy(), 1.0 + 1e-12, rtol=0, atol=1e-15)
    np.testing.assert_allclose(big.grad.numpy(), 1.0, rtol=1e-6)


@on_ranks("hosts4")
@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_value_on_one_rank_spoils_the_step_everywhere_and_no_residual(kind, bad):
    make, arguments, _, _ = METHODS[kind]
    good = [gradient(hvd.rank(), step) for step in range(3)]
    spoilt = gradient(hvd.rank(), 7)
    if hvd.rank() == 1:
        spoilt[4096 * 4 + 3] = bad
    with_bad, hook = train(make(**arguments), [*good[:2], spoilt, good[2]])
    without, other = train(make(**arguments), good)
    assert not torch.isfinite(with_bad[2]).all()
    assert torch.equal(with_bad[3], without[2])
    assert str(hook.state_dict()) == str(other.state_dict())


@on_ranks("hosts3")
@pytest.mark.parametrize("kind", METHODS)
def test_a_saved_state_goes_on_bit_by_bit(kind):
    make, arguments, _, _ = METHODS[kind]
    gradients = [gradient(hvd.rank(), step) for step in range(STEPS)]
    whole, _ = train(make(**arguments), gradients)
    _, hook = train(make(**arguments), gradients[:2])
    rest, _ = train(make(**arguments), gradients[2:], hook.state_dict())
    for found, expected in zip(rest, whole[2:], strict=True):
        assert torch.equal(found, expected)


@on_ranks("hosts3")
def test_small_and_excluded_gradients_travel_dense():
    model = torch.nn.ModuleDict({"big": torch.nn.Linear(200, 200), "left": torch.nn.Linear(200, 200)})
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    hvd.register_comm_hook(optimizer, CompressionHook(OneBit(exclude=["left.*"])))
    gradients = {
        name: [np.random.default_rng(rank).standard_normal(it.shape).astype(np.float32) for rank in range(hvd.size())]
        for name, it in model.named_parameters()
    }
    loss = sum((it * torch.from_numpy(gradients[name][hvd.rank()])).sum() for name, it in model.named_parameters())
    loss.backward()
    optimizer.step()
    for name, parameter in model.named_parameters():
        is_dense = np.allclose(parameter.grad.numpy(), np.mean(gradients[name], 0), atol=1e-6)
        assert is_dense == (name != "big.weight"), name


@on_ranks("shm2")
def test_a_state_of_other_arguments_is_refused():
    _, hook = train(Int8(scope="all"), [gradient(hvd.rank(), 0)])
    with pytest.raises(ValueError, match=r"saved with int8\(block=256, .*but this hook is int8\(block=512"):
        CompressionHook(Int8(block=512, scope="all")).load_state_dict(hook.state_dict())


@on_ranks("shm2")
def test_what_an_optimizer_does_not_take_as_compression():
    def wrap(compression, **options):
        parameter = torch.nn.Parameter(torch.zeros(8))
        sgd = torch.optim.SGD([parameter], lr=1.0)
        return hvd.DistributedOptimizer(sgd, [("p", parameter)], compression=compression, **options)

    with pytest.raises(TypeError, match="compression=Int8 is a class: pass an instance"):
        wrap(hvd.Compression.int8)
    with pytest.raises(ValueError, match=r"exclude='bias' matches no name of a parameter"):
        wrap(hvd.Compression.int8(exclude=["bias"]))
    for op in (hvd.Adasum, hvd.Max):
        with pytest.raises(ValueError, match=r"compression=topk\(.* supports op=hvd.Average and op=hvd.Sum only"):
            wrap(hvd.Compression.topk(0.1), op=op)
    with pytest.raises(ValueError, match="needs compression=hvd.Compression.none"):
        hvd.register_comm_hook(wrap(hvd.Compression.onebit()), CompressionHook(OneBit()))
