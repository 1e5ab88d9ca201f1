# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: K workers equal one worker on the whole batch, with every option and usual idiom."""

import pytest
import torch
from harness.torch_training import (
    OPTIMIZERS,
    batches,
    check_same_weights,
    loss_of,
    make_model,
    on_torch_ranks,
    shard,
    train_alone,
    weights,
)
from harness.worlds import ROUNDING

import horovod.torch as hvd

STEPS = 50


def wrapped(model, name="sgd", **options):
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[name](model.parameters()), **options)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return optimizer


def train(model, optimizer, steps=STEPS):
    for images, labels in batches(steps):
        optimizer.zero_grad()
        loss_of(model, shard(images), shard(labels)).backward()
        optimizer.step()


@pytest.mark.checked_numbers("weights after 50 steps of SGD, momentum, Adam and others", against="a single process")
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
@on_torch_ranks("shm2", "shm4")
def test_workers_equal_one_worker(name, named):
    model = make_model()
    names = {"named_parameters": model.named_parameters()} if named else {}
    optimizer = wrapped(model, name, **names)
    assert isinstance(optimizer, type(OPTIMIZERS[name](model.parameters())))
    assert type(optimizer).__name__ == type(OPTIMIZERS[name](model.parameters())).__name__
    train(model, optimizer)
    return check_same_weights(model, train_alone(OPTIMIZERS[name], STEPS))


OPTIONS = {
    "groups as a number": lambda model: {"groups": 2},
    "more groups than parameters": lambda model: {"groups": 100},
    "groups as lists": lambda model: {"groups": [[model[0].weight, model[4].weight], [model[4].bias]]},
    "predivided": lambda model: {"gradient_predivide_factor": 4.0},
    "predivided groups": lambda model: {"groups": 2, "gradient_predivide_factor": 4.0},
    "bucket views": lambda model: {"gradient_as_bucket_view": True},
    "bucket views in groups": lambda model: {"gradient_as_bucket_view": True, "groups": 2},
}


@pytest.mark.checked_numbers("weights with groups, predivision and bucket views", against="a single process")
@pytest.mark.parametrize("option", OPTIONS)
@on_torch_ranks("shm2", "shm4")
def test_options_change_nothing(option):
    model = make_model()
    train(model, wrapped(model, **OPTIONS[option](model)), steps=10)
    return check_same_weights(model, train_alone(OPTIMIZERS["sgd"], 10))


@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("compression", ["fp16", "bf16"])
@on_torch_ranks(ROUNDING[0])
def test_compression(compression, groups):
    model = make_model()
    train(model, wrapped(model, compression=getattr(hvd.Compression, compression), groups=groups), steps=10)
    return check_same_weights(model, train_alone(OPTIMIZERS["sgd"], 10), tolerance=2e-2)


class HalfByTorch(hvd.Compression.fp16):
    """Compressor of a user, derived from Horovod's: torch converts, not the engine."""


class BFloatByTorch(hvd.Compression.bf16):
    pass


BY_TORCH = {"fp16": HalfByTorch, "bf16": BFloatByTorch}
KINDS = {"alone": {}, "in groups": {"groups": 2}, "in buckets": {"gradient_as_bucket_view": True}}


def train_odd(compressor, kind):
    """Return the parameters after steps with a float64 gradient and one in channels_last."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.Flatten(), torch.nn.Linear(180, 4))
    model[0].to(memory_format=torch.channels_last)
    model.register_parameter("precise", torch.nn.Parameter(torch.ones(7, dtype=torch.float64)))
    optimizer = wrapped(model, named_parameters=model.named_parameters(), compression=compressor, **KINDS[kind])
    for step in range(3):
        optimizer.zero_grad()
        inputs = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
        output = model(inputs.to(memory_format=torch.channels_last))
        (output.square().sum() + (model.precise * (hvd.rank() + 1.0 / 3)).sum()).backward()
        optimizer.step()
    return [parameter.tolist() for parameter in model.parameters()]


@pytest.mark.checked_numbers("gradients that are rounded for the network", against="torch's own conversion")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compression", BY_TORCH)
@on_torch_ranks(*ROUNDING)
def test_compression_gives_the_bits_of_torch(compression, kind):
    result = train_odd(getattr(hvd.Compression, compression), kind)
    assert result == train_odd(BY_TORCH[compression], kind)
    return result


@on_torch_ranks("shm2")
def test_float32_is_not_rounded_on_one_host():
    for kind in KINDS:
        plain, *others = (train_odd(getattr(hvd.Compression, way), kind) for way in ("none", "fp16", "bf16"))
        for other in others:
            assert other[1:] == plain[1:], kind
            assert other[0] != plain[0]  # torch rounds float64 before the engine gets it
    for count in (5, 20_000):
        parameter = torch.nn.Parameter(torch.zeros(count))
        hvd.DistributedOptimizer(torch.optim.SGD([parameter], 1.0), compression=hvd.Compression.fp16)
        (parameter * 1e6).sum().backward()  # float16 would turn these into infinity
        assert parameter.grad.unique().tolist() == [1e6]


class HalfTheValue(hvd.Compression.none):
    """Compressor of a user."""

    @staticmethod
    def compress(tensor):
        return tensor / 2, "half"

    @staticmethod
    def decompress(tensor, ctx):
        assert ctx == "half"
        return tensor * 2


@on_torch_ranks("shm2")
def test_users_compressor():
    model = make_model()
    train(model, wrapped(model, compression=HalfTheValue), steps=10)
    return check_same_weights(model, train_alone(OPTIMIZERS["sgd"], 10))


@on_torch_ranks("shm2")
def test_sum_adds_and_num_groups_is_deprecated():
    model = torch.nn.Linear(3, 1)
    with pytest.warns(DeprecationWarning, match="groups"):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), op=hvd.Sum, num_groups=1)
    model(torch.ones(1, 3) * (hvd.rank() + 1)).sum().backward()
    torch.testing.assert_close(model.weight.grad, torch.full((1, 3), 3.0))
    optimizer.step()


@pytest.mark.checked_numbers("gradients in a process set", against="the exact values")
@on_torch_ranks("shm4")
def test_process_set_members_train_together_and_the_others_alone():
    members = hvd.add_process_set([0, 1])
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), process_set=members)
    model(torch.full((1, 2), float(hvd.rank()))).sum().backward()
    expected = 0.5 if hvd.rank() < 2 else float(hvd.rank())
    torch.testing.assert_close(model.weight.grad, torch.full((1, 2), expected))
    optimizer.step()
    hvd.remove_process_set(members)


@pytest.mark.checked_numbers("gradient accumulation", against="a single process")
@on_torch_ranks("shm2", "shm4")
def test_passes_add_up_and_an_incomplete_window_is_reduced_by_step():
    model = make_model()
    optimizer = wrapped(model, backward_passes_per_step=3)
    expected = make_model()
    plain = OPTIMIZERS["sgd"](expected.parameters())
    for count in (3, 3, 2, 1, 3):  # numbers of backward passes before a step
        optimizer.zero_grad()
        plain.zero_grad()
        for images, labels in batches(count):
            loss_of(model, shard(images), shard(labels)).backward()
            loss_of(expected, images, labels).backward()
        optimizer.step()
        plain.step()
    return check_same_weights(model, weights(expected))


@on_torch_ranks("shm2")
def test_set_backward_passes_per_step():
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0))
    optimizer.set_backward_passes_per_step(2)
    for _ in range(2):
        model(torch.full((1, 1), float(hvd.rank()))).sum().backward()
    torch.testing.assert_close(model.weight.grad, torch.ones(1, 1))
    optimizer.step()


@pytest.mark.checked_numbers("gradient clipping", against="a single process")
@pytest.mark.parametrize("wait", [True, False])
@on_torch_ranks("shm2")
def test_clipping_idioms_agree(wait):
    expected = make_model()
    plain = OPTIMIZERS["sgd"](expected.parameters())
    for images, labels in batches(5):
        plain.zero_grad()
        loss_of(expected, images, labels).backward()
        torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.1)
        plain.step()
    digests = []
    for idiom in ("horovod", "torch")[: 1 + wait]:
        model = make_model()
        optimizer = wrapped(model)
        optimizer._reducer._wait_in_backward = wait
        for images, labels in batches(5):
            optimizer.zero_grad()
            loss_of(model, shard(images), shard(labels)).backward()
            if idiom == "torch":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                continue
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        digests.append(check_same_weights(model, weights(expected)))
    return digests


@on_torch_ranks("shm2")
def test_gradient_scaler_needs_no_dance():
    model = make_model()
    optimizer = wrapped(model)
    scaler = (
        torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2) if hasattr(torch.amp, "GradScaler") else None
    )
    if scaler is None:
        return None
    for step, (images, labels) in enumerate(batches(10)):
        optimizer.zero_grad()
        loss = loss_of(model, shard(images), shard(labels))
        if step == 3 and hvd.rank() == 1:
            loss = loss * float("inf")  # one rank overflows, so all must skip the step
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
    expected = make_model()
    plain = OPTIMIZERS["sgd"](expected.parameters())
    for step, (images, labels) in enumerate(batches(10)):
        if step != 3:
            plain.zero_grad()
            loss_of(expected, images, labels).backward()
            plain.step()
    assert scaler.get_scale() < 1024 * 2**5
    return check_same_weights(model, weights(expected), tolerance=1e-5)


@pytest.mark.checked_numbers("steps with a closure", against="a single process")
@on_torch_ranks("shm2")
def test_closures():
    model = make_model()
    optimizer = wrapped(model)
    expected = make_model()
    plain = OPTIMIZERS["sgd"](expected.parameters())
    for images, labels in batches(5):

        def closure(images=images, labels=labels):
            optimizer.zero_grad()
            loss = loss_of(model, shard(images), shard(labels))
            loss.backward()
            return loss

        assert optimizer.step(closure).requires_grad
        plain.zero_grad()
        loss_of(expected, images, labels).backward()
        plain.step()
    return check_same_weights(model, weights(expected))


@on_torch_ranks("shm2")
def test_lbfgs_runs_its_closure_many_times():
    model = make_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), max_iter=4))
    images, labels = next(batches(1))

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, shard(images), shard(labels))
        loss.backward()
        return hvd.allreduce(loss.detach(), name="loss")

    before = optimizer.step(closure)
    after = optimizer.step(closure)
    assert after < before
    return weights(model).numpy().tobytes()


@on_torch_ranks("shm2")
def test_schedulers_made_before_and_after_wrapping():
    model = make_model()
    plain = OPTIMIZERS["sgd"](model.parameters())
    early = torch.optim.lr_scheduler.StepLR(plain, step_size=1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(plain)
    late = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    train(model, optimizer, steps=1)
    late.step()
    early.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.1 * 0.5)
    return weights(model).numpy().tobytes()


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("buckets", [True, False])
@on_torch_ranks("shm2")
def test_zero_grad_both_ways(set_to_none, buckets):
    model = make_model()
    optimizer = wrapped(model, gradient_as_bucket_view=buckets)
    for images, labels in batches(5):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss_of(model, shard(images), shard(labels)).backward()
        optimizer.step()
    return check_same_weights(model, train_alone(OPTIMIZERS["sgd"], 5))


@on_torch_ranks("shm2")
def test_channels_last_gradients_keep_their_strides():
    model = make_model().to(memory_format=torch.channels_last)
    optimizer = wrapped(model)
    for images, labels in batches(5):
        optimizer.zero_grad()
        loss_of(model, shard(images).to(memory_format=torch.channels_last), shard(labels)).backward()
        assert model[0].weight.grad.stride() == model[0].weight.stride()
        optimizer.step()
    return check_same_weights(model, train_alone(OPTIMIZERS["sgd"], 5))


@pytest.mark.checked_numbers("sparse gradients", against="the exact values")
@pytest.mark.parametrize("op", ["Average", "Sum"])
@pytest.mark.parametrize("as_dense", [True, False])
@on_torch_ranks("shm2", "shm4")
def test_sparse_gradients(as_dense, op):
    table = torch.nn.Embedding(6, 3, sparse=True)
    with torch.no_grad():
        table.weight.zero_()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), 1.0), op=getattr(hvd, op), sparse_as_dense=as_dense
    )
    table(torch.tensor([hvd.rank(), 5, 5])).sum().backward()
    assert table.weight.grad.is_sparse
    optimizer.step()
    expected = torch.zeros(6, 3)
    expected[: hvd.size()] = -1.0
    expected[5] += -2.0 * hvd.size()
    torch.testing.assert_close(table.weight.detach(), expected / (hvd.size() if op == "Average" else 1))


@on_torch_ranks("shm2")
def test_a_parameter_whose_name_no_other_rank_could_be_told_is_refused():
    weight = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"name must be a string.* not 'allreduce.a.udcff'"):
        hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("a\udcff", weight)])


@on_torch_ranks("shm2", "shm4")
def test_adasum_combines_steps():
    model = make_model()
    optimizer = wrapped(model, op=hvd.Adasum)
    before = weights(model)
    train(model, optimizer, steps=3)
    assert not torch.equal(before, weights(model))
    with pytest.raises(AssertionError, match="Adasum"), optimizer.skip_synchronize():
        pass
    return weights(model).numpy().tobytes()


@on_torch_ranks("shm2", "shm4")
def test_adasum_of_equal_steps_is_that_step():
    model = make_model()
    optimizer = wrapped(model, op=hvd.Adasum)
    expected = make_model()
    plain = OPTIMIZERS["sgd"](expected.parameters())
    for images, labels in batches(3):
        for trained, stepper in ((model, optimizer), (expected, plain)):
            stepper.zero_grad()
            loss_of(trained, images, labels).backward()
            stepper.step()
    return check_same_weights(model, weights(expected))


@pytest.mark.parametrize("op", ["Average", "Adasum"])
@on_torch_ranks("shm2", "one")
def test_a_wrapped_optimizer_shows_what_it_is(op):
    """Libraries read these attributes as they do with Horovod, and check the class name to avoid wrapping twice."""
    model = make_model()
    factor = 2.0 if op == "Average" else 1.0
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1),
        model.named_parameters(),
        op=getattr(hvd, op),
        backward_passes_per_step=3,
        gradient_predivide_factor=factor,
        sparse_as_dense=True,
    )
    assert str(type(optimizer)) == "<class 'horovod.torch.optimizer.SGD'>"
    assert isinstance(optimizer, torch.optim.SGD)
    assert (optimizer.op, optimizer.gradient_predivide_factor) == (getattr(hvd, op), factor)
    assert optimizer.sparse_as_dense is True
    assert optimizer.process_set is hvd.global_process_set
    assert optimizer._parameter_names == {parameter: name for name, parameter in model.named_parameters()}
    assert optimizer.backward_passes_per_step == 3
    optimizer.set_backward_passes_per_step(2)
    assert optimizer.backward_passes_per_step == 2
    with pytest.raises(ValueError, match="already a hvd.DistributedOptimizer"):
        hvd.DistributedOptimizer(optimizer)


@pytest.mark.parametrize("compression", ["none", "fp16"])
@on_torch_ranks("shm2")
def test_one_gradient_reduced_by_a_library(compression):
    compressor = getattr(hvd.Compression, compression)
    dense, rows = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(4, 2))
    named = [("dense", dense), ("rows", rows)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([dense, rows], 0.1), named, compressor)
    dense.grad = torch.full((3,), 1.0 + hvd.rank())
    handle, context = optimizer._allreduce_grad_async(dense)
    assert compressor.decompress(hvd.synchronize(handle), context).tolist() == [1.5] * 3
    rows.grad = torch.sparse_coo_tensor([[hvd.rank()]], torch.ones(1, 2), (4, 2), check_invariants=True)
    handle, context = optimizer._allreduce_grad_async(rows)
    assert handle().to_dense()[:, 0].tolist() == [0.5, 0.5, 0.0, 0.0]
