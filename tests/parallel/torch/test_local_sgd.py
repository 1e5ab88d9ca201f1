# SPDX-License-Identifier: Apache-2.0
"""hvd.DiLoCo and hvd.LocalSGD: equal bits on all ranks after each round, and the bits of a reference in NumPy."""

import hashlib
import io
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


@on_all_ranks(SHM3)
def test_a_late_worker_misses_the_round_and_fetches_its_result():
    """Rank 2 starts its round only after the others have ended theirs."""
    model = model_of()
    optimizer = wrapped(model, every=2, deadline_s=0.3)
    train(model, optimizer, 1)
    token = torch.zeros(1)
    if hvd.rank() == 2:
        hvd.recv(token, 0)
        train(model, optimizer, 1, 1)
    else:
        train(model, optimizer, 1, 1)
        if hvd.rank() == 0:
            hvd.send(token, 2)
    assert optimizer.core.rounds == 1
    after_the_round = bits_of(model)
    hvd.barrier()  # else the others may end the next round too before rank 2 reports
    train(model, optimizer, 2, 2)  # all three take part again
    assert optimizer.core.rounds == 2
    optimizer.finish()
    return after_the_round, bits_of(model)


@on_all_ranks("shm2")
def test_the_average_of_a_round_without_a_late_worker_is_that_of_the_others():
    model = model_of()
    optimizer = hvd.LocalSGD(
        torch.optim.SGD(model.parameters(), lr=1.0), every=1, deadline_s=0.2, named_parameters=model.named_parameters()
    )
    expected = model[0].bias.detach() - 2.0
    optimizer.core.begin()
    token = torch.zeros(1)
    if hvd.rank() == 1:
        hvd.recv(token, 0)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0 + 5.0 * hvd.rank())
    optimizer.step()
    if hvd.rank() == 0:
        hvd.send(token, 1)
    torch.testing.assert_close(model[0].bias.detach(), expected)
    optimizer.finish()


@pytest.mark.parametrize("wire", ["fp32", "int4"])
@on_all_ranks("shm2")
def test_nan_on_one_worker_drops_the_round_on_all(wire):
    model = model_of()
    optimizer = wrapped(model, every=2, wire=wire)
    train(model, optimizer, 2)
    good = bits_of(model)
    train(model, optimizer, 1, 2)
    if hvd.rank() == 1:
        with torch.no_grad():
            model[1].bias[3] = float("nan")
    train(model, optimizer, 1, 3)
    assert optimizer.core.rounds == 2
    if hvd.rank() == 1:
        assert bits_of(model) == good  # continues with the global weights
    train(model, optimizer, 2, 4)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    optimizer.finish()
    return bits_of(model)


@on_all_ranks("shm2")
def test_a_worker_that_made_more_steps_counts_more():
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = hvd.LocalSGD(torch.optim.SGD(model.parameters(), lr=1.0), every_seconds=3600.0)
    optimizer.core.begin()
    before = model.weight.detach().clone()
    for _ in range(3 if hvd.rank() else 1):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
    optimizer.finish()
    torch.testing.assert_close(model.weight.detach(), before - (1 * 1 + 3 * 3) / 4)
    assert optimizer.core.rounds == 1


@on_all_ranks(SHM3)
def test_rounds_by_time_between_workers_of_different_speeds():
    model = model_of()
    optimizer = wrapped(model, every_seconds=0.002, fragments=2, delay=1)
    train(model, optimizer, 10 * (1 + hvd.rank()))
    optimizer.finish()
    assert optimizer.core.rounds > 2
    return optimizer.core.rounds, bits_of(model)


@pytest.mark.parametrize("options", [{"every": 3}, {"every": 6, "fragments": 2, "wire": "int8"}], ids=str)
@on_all_ranks("shm2")
def test_resume_with_equal_bits(options):
    """Go on from a checkpoint that was made between two rounds."""

    def made():
        model = model_of()
        inner = torch.optim.AdamW(model.parameters())
        return model, hvd.DiLoCo(inner, named_parameters=model.named_parameters(), **options)

    model, optimizer = made()
    train(model, optimizer, 4)
    saved = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], saved)
    train(model, optimizer, 5, 4)
    rounds = optimizer.core.rounds
    expected = bits_of(model)
    optimizer.finish()
    saved.seek(0)
    again, resumed = made()
    states = torch.load(saved, weights_only=True)
    again.load_state_dict(states[0])
    resumed.load_state_dict(states[1])
    train(again, resumed, 5, 4)
    assert bits_of(again) == expected
    assert resumed.core.rounds == rounds
    resumed.finish()


@on_all_ranks(SHM3)
def test_resume_with_another_number_of_workers_and_fragments():
    """Two workers make a checkpoint, and three go on from it."""
    first = hvd.add_process_set([0, 1])
    model = model_of()
    optimizer = wrapped(model, every=2, process_set=first)
    saved = None
    if hvd.rank() < 2:
        train(model, optimizer, 4)
        saved = optimizer.state_dict(), model.state_dict()
        optimizer.finish()
    saved = hvd.broadcast_object(saved, 0)
    again = model_of(seed=9)
    resumed = wrapped(again, every=3, fragments=3)
    resumed.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    assert resumed.core.rounds == 2
    train(again, resumed, 3, 4)
    resumed.finish()
    assert resumed.core.rounds > 2
    hvd.remove_process_set(first)
    return bits_of(again)


@on_all_ranks("shm2")
def test_resume_with_rounds_of_another_length():
    model = model_of()
    optimizer = wrapped(model, every=2)
    train(model, optimizer, 20)
    saved = optimizer.state_dict()
    optimizer.finish()
    for every in (10, 1):
        resumed = wrapped(model, every=every)
        resumed.load_state_dict(saved)
        before = resumed.core.rounds
        train(model, resumed, 10, first=20)
        assert resumed.core.rounds - before == 10 // every
        resumed.finish()


@on_all_ranks("shm2")
def test_a_round_that_was_taken_and_not_merged_is_merged_after_a_resume():
    model = model_of()
    optimizer = wrapped(model, every=10, delay=5)
    train(model, optimizer, 12)
    while not hvd.allreduce(torch.tensor(optimizer.core.rounds), op=hvd.Min):
        pass  # the exchange goes on beside the steps
    weights, saved = {name: it.clone() for name, it in model.state_dict().items()}, optimizer.state_dict()
    optimizer.finish()
    assert saved["outer"]["unmerged"] == [0]
    model.load_state_dict(weights)
    resumed = wrapped(model, every=10, delay=5)
    resumed.load_state_dict(saved)
    resumed.core.begin()
    merged = {name: it.copy() for name, it in resumed.core.outer.all_by_name()[0].items()}
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(parameter.detach().numpy(), merged[name])
    resumed.finish()


@on_all_ranks("shm2")
def test_a_parameter_that_is_unfrozen_or_added_later_is_refused():
    model = model_of()
    model[0].weight.requires_grad_(False)
    optimizer = wrapped(model, every=2)
    train(model, optimizer, 2)
    model[0].weight.requires_grad_(True)
    with pytest.raises(ValueError, match=r"a parameter was added or unfrozen .*: call finish\(\), and wrap"):
        train(model, optimizer, 1, first=2)
    optimizer.finish()


@on_all_ranks("shm2")
def test_arguments_that_differ_are_named_on_every_rank():
    model = model_of()
    optimizer = wrapped(model, every=2 + hvd.rank())
    with pytest.raises(hvd.HorovodMismatchError, match="every is 2 on rank 0 and 3 on rank 1"):
        train(model, optimizer, 1)
    optimizer = hvd.DiLoCo(torch.optim.SGD(torch.nn.Linear(2, 3 + hvd.rank()).parameters(), lr=0.1), every=2)
    with pytest.raises(hvd.HorovodMismatchError, match=r"of shape \(3, 2\) on rank 0 .* of shape \(4, 2\) on rank 1"):
        optimizer.step()


@on_all_ranks("shm2")
def test_equal_models_in_another_order_are_refused():
    models = [model_of(), model_of(1)]
    optimizers = [wrapped(model, every=2) for model in models]
    index = hvd.rank()  # rank 0 steps the first one, and rank 1 the second one
    with pytest.raises(hvd.HorovodMismatchError, match=r"in one order; this is number \d+ on rank 0, \d+ on rank 1"):
        train(models[index], optimizers[index], 1)


@on_all_ranks("shm2")
def test_optimizers_that_are_refused():
    model = model_of()
    with pytest.raises(ValueError, match="inner must be a torch optimizer, and Linear has no step"):
        hvd.DiLoCo(model[0], every=2)
    with pytest.raises(ValueError, match="fragments=4 is more than the 3 layers"):
        wrapped(model, every=9, fragments=4)
    with pytest.raises(ValueError, match="wrap an optimizer only once"):
        hvd.DiLoCo(wrapped(model, every=2), every=2)
    with pytest.raises(ValueError, match="float64"):
        wrapped(model_of().double(), every=2)
    with pytest.raises(ValueError, match=r"outer: hvd\.LocalSGD\(\) takes the average"):
        hvd.LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), every=2, outer={"lr": 1})
    with pytest.raises(ValueError, match="named_parameters must name each"):
        hvd.DiLoCo(torch.optim.SGD(model.parameters(), lr=0.1), every=2, named_parameters=[])


@on_all_ranks("shm2")
def test_schedulers_scalers_and_two_optimizers():
    first, second = model_of(), model_of(1)
    optimizers = [wrapped(first, every=2), wrapped(second, every=3, fragments=3)]
    schedulers = [torch.optim.lr_scheduler.StepLR(it, step_size=2, gamma=0.5) for it in optimizers]
    has_scaler = hasattr(torch.amp, "GradScaler")
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if has_scaler else torch.cuda.amp.GradScaler(enabled=False)
    for step in range(6):
        for model, optimizer, scheduler in zip((first, second), optimizers, schedulers, strict=True):
            optimizer.zero_grad()
            assert all(parameter.grad is None for parameter in model.parameters())
            data = torch.full((4, SIZES[0]), float(step + hvd.rank()))
            scaler.scale(model(data).square().mean()).backward()
            scaler.step(optimizer)
            scheduler.step()
        scaler.update()
    assert [it.inner.param_groups[0]["lr"] for it in optimizers] == [float(LR) / 8] * 2
    assert [it.core.rounds for it in optimizers] == [3, 6]
    for optimizer in optimizers:
        optimizer.finish()
    return bits_of(first), bits_of(second)


@on_all_ranks("hosts4", limit_s=60)
def test_a_host_is_one_worker():
    """The ranks of a host average gradients in each step; hosts exchange weights."""
    model = model_of()
    inner = torch.optim.SGD(model.parameters(), lr=float(LR))
    optimizer = hvd.DiLoCo(inner, every=3, across="hosts", named_parameters=model.named_parameters())
    initial = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}

    def host_step(host, step, weights):
        for name, value in weights.items():
            ranks = (2 * host, 2 * host + 1)
            value -= LR * (sum(gradient(rank, step, name, value.shape) for rank in ranks) / np.float32(2))

    reference = Reference(initial, 2, Options(every=3), host_step)
    train(model, optimizer, 5)
    for _ in range(5):
        reference.step()
    assert optimizer.core.local_ranks == [hvd.rank() // 2 * 2, hvd.rank() // 2 * 2 + 1]
    for name, value in model.named_parameters():
        np.testing.assert_allclose(value.detach().numpy(), reference.models[hvd.rank() // 2][name], atol=1e-5)
    optimizer.finish()
    return bits_of(model)


@on_all_ranks("one")
def test_a_single_worker():
    model = model_of()
    optimizer = wrapped(model, every=2, fragments=2)
    train(model, optimizer, 5)
    assert optimizer.core.rounds == 5
    optimizer.finish()
    assert optimizer.core.rounds == 7


@pytest.mark.parametrize(("wire", "bits"), [("fp32", 32), ("bf16", 16), ("int8", 8 + 1 / 8), ("int4", 4 + 1 / 8)])
@on_all_ranks("tcp2")
def test_bytes_of_rounds(wire, bits):
    """Each of two workers sends half of its difference, and half of the average; counters() has these bytes."""
    model = torch.nn.Linear(1024, 8, bias=False)
    optimizer = hvd.LocalSGD(torch.optim.SGD(model.parameters(), lr=0.5), every=5, wire=wire)
    optimizer.core.begin()
    before = hvd.counters()["data_bytes_sent"]
    for _ in range(20):
        model.weight.grad = torch.randn(8, 1024)
        optimizer.step()
    expected = 4 * 8192 * bits / 8  # four rounds
    assert optimizer.core.bytes_sent == optimizer.core.bytes_received == expected
    optimizer.finish()
    control = hvd.counters()["data_bytes_sent"] - before - expected
    assert 0 < control < 4 * 5 * 64
