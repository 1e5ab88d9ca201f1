# SPDX-License-Identifier: Apache-2.0
"""Training with communication hooks equals training without them, even if ranks skip, freeze or add parameters."""

import pytest
import torch
from harness.comm_hooks import backward, buckets_of, parameters_of, simple, step, two_stage_hook, values
from harness.sets import process_sets
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

import horovod.torch as hvd
from horovod.torch.elastic import TorchState
from horovod.torch.hooks import allreduce_hook, running

SMALL = 600  # bytes of a bucket, so that the small models of these tests need several buckets
STEPS = 3


def fp16_hook(bucket):
    half = yield bucket.allreduce_async(bucket.tensor.half(), stage="half")
    return half.float()


def several_at_once_hook(bucket):
    """Yield two handles together; one is from hvd.allreduce_async."""
    name = f"own.{bucket.index}"
    half, rest = bucket.tensor.tensor_split(2)
    first, second = yield [bucket.allreduce_async(half), hvd.allreduce_async(rest, name=name, op=bucket.op)]
    return torch.cat([first, second])


def wrap(model, hook=allreduce_hook, make=OPTIMIZERS["sgd"], wait=True, bucket_bytes=SMALL, **options):
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)
    if getattr(optimizer, "_reducer", None) is not None:
        optimizer._reducer._wait_in_backward = wait
    if hook is not None:
        hvd.register_comm_hook(optimizer, hook, bucket_bytes=bucket_bytes)
    return optimizer


def train(model, optimizer, steps=STEPS, passes=1):
    for images, labels in batches(steps):
        optimizer.zero_grad()
        for part in range(passes):
            rows = slice(part, None, passes)
            (loss_of(model, shard(images)[rows], shard(labels)[rows]) / passes).backward()
        optimizer.step()
    return model


WAYS = {
    "as it is": {},
    "waiting in step()": {"wait": False},
    "groups": {"groups": 2},
    "shared memory": {"gradient_as_bucket_view": True},
    "shared memory, waiting in step()": {"gradient_as_bucket_view": True, "wait": False},
    "predivided": {"gradient_predivide_factor": 2.0},
    "two passes": {"backward_passes_per_step": 2},
    "one bucket": {"bucket_bytes": 1 << 20},
}


@pytest.mark.checked_numbers("weights after training with a communication hook", against="a single process")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hook", [allreduce_hook, two_stage_hook])
@on_torch_ranks("shm2", "shm4")
def test_training_equals_one_process_and_training_without_a_hook(hook, way):
    options, passes = WAYS[way], WAYS[way].get("backward_passes_per_step", 1)
    trained = wrap(make_model(), hook, **options)
    assert len(buckets_of(trained)) == (1 if way == "one bucket" else 2 if "groups" in options else 3)
    with_hook = train(model := make_model(), wrap(model, hook, **options), passes=passes)
    if hook is allreduce_hook:
        native = {name: value for name, value in options.items() if name != "bucket_bytes"}
        without = train(model := make_model(), wrap(model, None, **native), passes=passes)
        assert torch.equal(weights(with_hook), weights(without))
    return check_same_weights(with_hook, train_alone(OPTIMIZERS["sgd"], STEPS))


@pytest.mark.checked_numbers("weights after training with a communication hook", against="a single process")
@pytest.mark.parametrize("hook", [allreduce_hook, two_stage_hook, several_at_once_hook])
@on_torch_ranks("tcp2", "hosts4")
def test_other_routes_and_a_rank_that_asks_for_failures_all_the_time(hook):
    with_hook = train(model := make_model(), wrap(model, hook))
    expected = train_alone(OPTIMIZERS["sgd"], STEPS)
    check_same_weights(with_hook, expected)
    before, running._PATIENCE_S = running._PATIENCE_S, 0.0
    try:
        return check_same_weights(train(model := make_model(), wrap(model, hook)), expected)
    finally:
        running._PATIENCE_S = before


@on_torch_ranks("shm2", "shm4")
def test_a_hook_of_the_user_that_sends_halves():
    with_hook = train(model := make_model(), wrap(model, fp16_hook))
    expected = train_alone(OPTIMIZERS["sgd"], STEPS)
    assert not torch.equal(weights(with_hook), expected)
    return check_same_weights(with_hook, expected, tolerance=2e-3)


@on_torch_ranks("shm2", "shm4")
def test_what_a_hook_is_given():
    seen = []

    def looking_hook(bucket):
        shapes = {name: tuple(view.shape) for name, view in bucket.gradients.items()}
        seen.append((bucket.index, bucket.is_last, shapes, bucket.tensor.tolist(), bucket.tensor.dtype))
        assert (bucket.size, bucket.rank, bucket.op) == (hvd.size(), hvd.rank(), hvd.Sum)
        assert bucket.is_finite(bucket.tensor)
        assert not bucket.is_finite(torch.tensor([1.0, torch.nan]))
        assert not bucket.is_finite(torch.tensor([torch.inf, -torch.inf]))
        assert bucket.is_finite(torch.tensor([3e38, 3e38]))
        next(iter(bucket.gradients.values())).mul_(2.0)
        reduced = yield bucket.allreduce_async(bucket.tensor)
        return bucket.average(reduced)

    wide = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    half = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    last = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = simple([wide, half, last], looking_hook, bucket_bytes=1000)
    backward(wide, half, last)
    assert sorted(seen) == [
        (0, False, {"w2": (1,), "w0": (2, 2)}, [1.0] * 5, torch.float64),
        (1, True, {"w1": (3,)}, [1.0] * 3, torch.float32),
    ]
    optimizer.step()
    assert half.grad.dtype == torch.bfloat16
    size = hvd.size()
    assert (half.grad.tolist(), wide.grad[0, 0].item(), last.grad.item()) == ([2.0 * size] * 3, size, 2.0 * size)


@pytest.mark.parametrize("wait", [True, False])
@on_torch_ranks("shm2", "shm4")
def test_graphs_that_differ(wait):
    """Some gradients are missing on one rank or on all ranks, or arrive in a different order."""
    parameters = parameters_of(3, 2, 4)
    optimizer = simple(parameters, two_stage_hook, wait, bucket_bytes=24)
    assert buckets_of(optimizer) == [["w2", "w1"], ["w0"]]
    step(optimizer, *(parameters if hvd.rank() else parameters[::-1]))
    step(optimizer, parameters[hvd.rank() % 3])
    step(optimizer, parameters[0])
    step(optimizer)
    size = hvd.size()
    used = [sum(1 for rank in range(size) if rank % 3 == number) for number in range(3)]
    assert values(parameters) == [1.0 - 2 * size - used[0], 1.0 - size - used[1], 1.0 - size - used[2]]
    return values(parameters)


@pytest.mark.parametrize("wait", [True, False])
@on_torch_ranks("shm2", "shm4")
def test_frozen_and_unfrozen_parameters(wait):
    parameters = parameters_of(3, 2, 1)
    parameters[0].requires_grad_(False)
    optimizer = simple(parameters, two_stage_hook, wait, bucket_bytes=100)
    assert buckets_of(optimizer) == [["w2", "w1"]]
    step(optimizer, *parameters[1:])
    parameters[1].requires_grad_(False)  # stays in its bucket
    parameters[1].grad = None
    step(optimizer, parameters[2])
    assert parameters[1].grad is None
    parameters[0].requires_grad_(hvd.rank() == 0)  # rank 0 alone trains it, but all ranks append a bucket
    for _ in range(3):
        step(optimizer, *(it for it in parameters if it.requires_grad))
    assert buckets_of(optimizer) == [["w2", "w1"], ["w0"]]
    parameters[1].requires_grad_(True)
    step(optimizer, *parameters[1:])
    size = hvd.size()
    assert values(parameters) == [1.0 - 3, 1.0 - 2 * size, 1.0 - 6 * size]
    return optimizer._reducer._flights.comm_hook.checksum


@pytest.mark.parametrize("wait", [True, False])
@on_torch_ranks("shm2", "shm4")
def test_parameters_that_are_added(wait):
    parameters, added = parameters_of(3, 2), parameters_of(2, 5)
    optimizer = simple(parameters, two_stage_hook, wait, bucket_bytes=24)
    step(optimizer, *parameters)
    optimizer.add_param_group({"params": added})
    step(optimizer, *parameters, added[1])
    step(optimizer, *parameters, *added)
    assert buckets_of(optimizer) == [
        ["w1", "w0"],
        ["allreduce.noname.1.1"],
        ["allreduce.noname.1.0"],
    ]
    size = hvd.size()
    assert values(parameters + added) == [1.0 - 3 * size] * 2 + [1.0 - size, 1.0 - 2 * size]


@on_torch_ranks("shm2", "shm4")
def test_the_first_rank_decides_on_the_buckets():
    parameters = parameters_of(3, 2, 1)
    optimizer = simple(parameters, two_stage_hook, bucket_bytes=24 if hvd.rank() == 0 else 1)
    step(optimizer, *parameters)
    assert values(parameters) == [1.0 - hvd.size()] * 3
    assert buckets_of(optimizer) == [["w2", "w1", "w0"]]


@on_torch_ranks("shm2")
def test_buckets_behind_one_that_differs_are_taken_over_too():
    """Rank 1 has frozen a parameter of the first bucket; all other buckets are equal on all ranks."""
    parameters = parameters_of(3, 2, 3)
    parameters[2].requires_grad_(hvd.rank() == 0)
    optimizer = simple(parameters, two_stage_hook, groups=[[parameters[2], parameters[1]], [parameters[0]]])
    step(optimizer, *(it for it in parameters if it.requires_grad))
    assert values(parameters) == [-1.0, -1.0, 0.0]  # rank 1 updates its frozen parameter too
    assert buckets_of(optimizer) == [["w2", "w1"], ["w0"]]


@on_torch_ranks("shm2", "shm4")
def test_idioms_of_training_loops():
    parameters = parameters_of(3, 2)
    optimizer = simple(parameters, two_stage_hook)

    def closure():
        optimizer.zero_grad()
        backward(*parameters)
        return 1.0

    step(optimizer, *parameters)
    assert optimizer.step(closure) == 1.0
    optimizer.zero_grad()
    backward(*parameters)
    optimizer.synchronize()
    for parameter in parameters:
        parameter.grad.mul_(2.0)
    with optimizer.skip_synchronize():
        optimizer.step()
    backward(*parameters)
    optimizer.zero_grad()
    optimizer.step()
    for _ in range(2):
        backward(*parameters)
        for parameter in parameters:
            parameter.grad = None  # what model.zero_grad() does
    step(optimizer, *parameters)
    assert values(parameters) == [1.0 - 5 * hvd.size()] * 2


@pytest.mark.parametrize("first_hook", [two_stage_hook, None])
@on_torch_ranks("shm2", "shm4")
def test_two_optimizers_of_one_backward_pass(first_hook):
    """The optimizers have equal names, odd ranks make them in the other order, and leave one out in a step."""
    odd = hvd.rank() % 2
    one, other = parameters_of(3, 2), parameters_of(3, 2, 1)
    made = [simple(*it) for it in ([(one, first_hook), (other, two_stage_hook)][:: -1 if odd else 1])]
    optimizers = made[:: -1 if odd else 1]
    for number in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        left_out = number == 2 and odd
        backward(*one, *(() if left_out else other))
        for optimizer in optimizers:
            optimizer.step()
    size = hvd.size()
    assert values(one + other) == [1.0 - 4 * size] * 2 + [1.0 - 4 * size + size // 2] * 3


@on_torch_ranks("shm2", "shm4")
def test_twins_with_hooks():
    models = [make_model() for _ in range(2)]
    optimizers = [wrap(model, two_stage_hook) for model in models]
    for images, labels in batches(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        sum(loss_of(model, shard(images), shard(labels)) for model in models).backward()
        for optimizer in optimizers:
            optimizer.step()
    expected = train_alone(OPTIMIZERS["sgd"], STEPS)
    return [check_same_weights(model, expected) for model in models]


@on_torch_ranks("shm4")
def test_a_process_set():
    with process_sets([0, 2], [1]) as (pair, single):
        parameters, alone = parameters_of(3, 2), parameters_of(1)
        calls = []

        def counting_hook(bucket):
            calls.append(bucket.index)
            assert (bucket.size, bucket.rank) == (2, hvd.rank() // 2)
            return (yield from two_stage_hook(bucket))

        optimizer = simple(parameters, counting_hook, process_set=pair)
        of_one = simple(alone, counting_hook, process_set=single)
        for _ in range(2):
            step(optimizer, *parameters)
            step(of_one, *alone)
        is_member = hvd.rank() in (0, 2)
        assert values(parameters) == [1.0 - 2 * (2 if is_member else 1)] * 2
        assert values(alone) == [-1.0]
        assert len(calls) == (4 if is_member else 0)


@on_torch_ranks("one")
def test_a_rank_alone_does_not_call_its_hook():
    parameters = parameters_of(2)

    def failing_hook(bucket):
        raise AssertionError

    step(simple(parameters, failing_hook), *parameters)
    assert values(parameters) == [0.0]


@on_torch_ranks("shm2", "shm4")
def test_ranks_that_have_joined_take_part_with_zeros():
    parameters = parameters_of(3, 2)
    optimizer = simple(parameters)
    for _ in range(1 + hvd.rank()):
        step(optimizer, *parameters)
    assert hvd.join() == hvd.size() - 1
    hvd.broadcast_parameters(parameters, root_rank=hvd.size() - 1)
    step(optimizer, *parameters)
    size = hvd.size()
    assert values(parameters) == [1.0 - sum(range(1, size + 1)) - size] * 2


class Counting:
    """Hook whose state differs between ranks."""

    def __init__(self):
        self.sums = torch.zeros(2)

    def __call__(self, bucket):
        self.sums += bucket.tensor
        return (yield from allreduce_hook(bucket))

    def state_dict(self):
        return {"sums": self.sums}

    def load_state_dict(self, state):
        self.sums = state["sums"]


@on_torch_ranks("shm2")
def test_the_state_of_a_hook_is_in_elastic_commits():
    parameters = parameters_of(2)
    hook = Counting()
    optimizer = simple(parameters, hook)
    state = TorchState(optimizer=optimizer)

    def train_once():
        optimizer.zero_grad()
        backward(*parameters, factor=1.0 + hvd.rank())
        optimizer.step()

    train_once()
    state.sync()
    state.commit()
    train_once()
    assert hook.sums.tolist() == [2.0 + 2 * hvd.rank()] * 2
    state.restore()
    assert hook.sums.tolist() == [1.0 + hvd.rank()] * 2  # each rank restores its own sums
    train_once()
    state.restore()
    assert hook.sums.tolist() == [1.0 + hvd.rank()] * 2
