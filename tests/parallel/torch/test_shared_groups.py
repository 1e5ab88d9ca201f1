# SPDX-License-Identifier: Apache-2.0
"""An optimizer and the distributed optimizer made of it share groups, state and hooks, also after loading a state."""

import copy
import gc
import pickle
import warnings
import weakref

import pytest
import torch
from harness.torch_training import on_torch_ranks

import horovod.torch as hvd
from horovod.common.exceptions import HorovodWarning

OPS = {"average": hvd.Average, "adasum": hvd.Adasum}
both_kinds = pytest.mark.parametrize("op", OPS)
either = pytest.mark.parametrize("loads", ["wrapper", "original"])


def make(op="average", lr=1.0, **options):
    """Return (parameter, original, wrapper). The gradient of the parameter is 1 in each step."""
    weight = torch.nn.Parameter(torch.zeros(1))
    original = torch.optim.SGD([weight], lr, **options)
    return weight, original, hvd.DistributedOptimizer(original, [("weight", weight)], op=OPS[op])


def step(optimizer, weight):
    """Make one step. Return the change of the parameter: its learning rate, without momentum."""
    before = weight.item()
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
    return before - weight.item()


def check_shared(original, wrapper):
    assert wrapper.param_groups is original.param_groups
    assert wrapper.state is original.state
    assert wrapper.defaults is original.defaults


def with_rate(optimizer, lr):
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["lr"] = lr
    return saved


@pytest.mark.checked_numbers("learning rates of schedulers after load_state_dict", against="a single process")
@both_kinds
@either
@on_torch_ranks("shm2")
def test_a_scheduler_keeps_its_effect_after_loading(op, loads):
    weight = torch.nn.Parameter(torch.zeros(1))
    original = torch.optim.SGD([weight], 1.0)
    early = torch.optim.lr_scheduler.LambdaLR(original, lambda epoch: 10.0**-epoch)
    wrapper = hvd.DistributedOptimizer(original, [("weight", weight)], op=OPS[op])
    groups, group, state = original.param_groups, original.param_groups[0], original.state
    loader = original if loads == "original" else wrapper
    loader.load_state_dict(with_rate(loader, 1.0))
    check_shared(original, wrapper)
    assert original.param_groups is groups
    assert original.param_groups[0] is group
    assert original.state is state
    rates = []
    for _ in range(4):
        rates.append(step(wrapper, weight))
        early.step()
    assert rates == pytest.approx([1.0, 0.1, 0.01, 0.001], rel=1e-3)
    assert wrapper.param_groups[0]["lr"] == early.get_last_lr()[0]


@pytest.mark.checked_numbers("two schedulers, made before and after wrapping", against="a single process")
@both_kinds
@on_torch_ranks("shm2")
def test_schedulers_made_before_and_after_wrapping(op):
    weight = torch.nn.Parameter(torch.zeros(1))
    original = torch.optim.SGD([weight], 1.0)
    early = torch.optim.lr_scheduler.StepLR(original, 2, gamma=0.5)
    between = torch.optim.lr_scheduler.ExponentialLR(original, gamma=0.9)
    wrapper = hvd.DistributedOptimizer(original, [("weight", weight)], op=OPS[op])
    late = torch.optim.lr_scheduler.MultiplicativeLR(wrapper, lambda epoch: 0.8)

    other = torch.nn.Parameter(torch.zeros(1))
    alone = torch.optim.SGD([other], 1.0)
    alone_schedulers = [
        torch.optim.lr_scheduler.StepLR(alone, 2, gamma=0.5),
        torch.optim.lr_scheduler.ExponentialLR(alone, gamma=0.9),
        torch.optim.lr_scheduler.MultiplicativeLR(alone, lambda epoch: 0.8),
    ]
    for number in range(5):
        if number == 3:
            wrapper.load_state_dict(wrapper.state_dict())
            alone.load_state_dict(alone.state_dict())
        assert step(wrapper, weight) == pytest.approx(step(alone, other))
        # torch would warn about the order of steps, and the warning would fail this test.
        for scheduler in (early, between, late, *alone_schedulers):
            scheduler.step()


@both_kinds
@on_torch_ranks("shm2")
def test_steps_count_for_schedulers_of_the_original_and_only_those(op):
    weight = torch.nn.Parameter(torch.zeros(1))
    original = torch.optim.SGD([weight], 1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(original, 1)
    wrapper = hvd.DistributedOptimizer(original, [("weight", weight)], op=OPS[op])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scheduler.step()  # called before a step, so torch must warn
    assert any("before `optimizer.step()`" in str(it.message) for it in caught)
    scheduler = torch.optim.lr_scheduler.StepLR(original, 1)
    wrapper.register_step_post_hook(lambda *_: scheduler.step())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(wrapper, weight)
        scheduler.step()


@pytest.mark.checked_numbers("steps with a tensor learning rate after loading", against="a single process")
@either
@on_torch_ranks("shm2")
def test_a_tensor_learning_rate(loads):
    weight = torch.nn.Parameter(torch.zeros(1))
    # foreach=False, because torch's implementation for several tensors refuses a learning rate that is a tensor.
    original = torch.optim.Adam([weight], torch.tensor(1.0), foreach=False)
    early = torch.optim.lr_scheduler.LambdaLR(original, lambda epoch: 0.5**epoch)
    wrapper = hvd.DistributedOptimizer(original, [("weight", weight)])
    rates = [step(wrapper, weight)]
    early.step()
    loader = original if loads == "original" else wrapper
    loader.load_state_dict(copy.deepcopy(loader.state_dict()))
    check_shared(original, wrapper)
    rates.append(step(wrapper, weight))
    early.step()
    rates.append(step(wrapper, weight))
    assert rates == pytest.approx([1.0, 0.5, 0.25], rel=1e-4)


@pytest.mark.checked_numbers("gradients of a group that was added to the original", against="NumPy")
@both_kinds
@either
@on_torch_ranks("shm2")
def test_a_group_added_to_either_is_reduced(op, loads):
    weight, original, wrapper = make(op)
    later = torch.nn.Parameter(torch.zeros(2))
    (original if loads == "original" else wrapper).add_param_group({"params": [later], "lr": 0.1})
    check_shared(original, wrapper)
    assert len(wrapper.param_groups) == 2
    direction = torch.tensor([1.0, 0.0]) if hvd.rank() == 0 else torch.tensor([0.0, 1.0])
    (weight.sum() + (later * direction).sum()).backward()
    if op == "average":
        assert later.grad.tolist() == [0.5, 0.5]
    wrapper.step()
    # Adasum adds orthogonal gradients.
    assert later.tolist() == pytest.approx([-0.05, -0.05] if op == "average" else [-0.1, -0.1])
    wrapper.load_state_dict(wrapper.state_dict())
    check_shared(original, wrapper)
    assert len(wrapper.param_groups) == 2
    return later.tolist()


@either
@on_torch_ranks("shm2")
def test_state_that_is_set_as_unpickling_does(loads):
    weight, original, wrapper = make(momentum=0.5)
    step(wrapper, weight)
    groups, state = original.param_groups, original.state
    moments = {weight: {"momentum_buffer": torch.tensor([4.0])}}
    defaults = {**original.defaults, "lr": 2.0}
    content = {"param_groups": [{**groups[0], "lr": 0.5}], "state": moments, "defaults": defaults}
    (original if loads == "original" else wrapper).__setstate__(content)
    check_shared(original, wrapper)
    assert original.param_groups is groups
    assert original.state is state
    assert (groups[0]["lr"], original.defaults["lr"]) == (0.5, 2.0)
    assert step(wrapper, weight) == pytest.approx(0.5 * (0.5 * 4.0 + 1.0))


@either
@on_torch_ranks("shm2")
def test_loading_forgets_the_round(loads):
    """Gradients that were reduced before loading do not count as a backward pass too many."""
    weight, original, wrapper = make()
    weight.sum().backward()
    (original if loads == "original" else wrapper).load_state_dict(with_rate(original, 0.25))
    assert step(wrapper, weight) == 0.25


def step_hooks_run():
    weight, seen = torch.nn.Parameter(torch.zeros(1)), []
    alone = torch.optim.SGD([weight], 1.0)
    alone.register_step_pre_hook(lambda *_: seen.append(True))
    alone.step()
    return bool(seen)


@on_torch_ranks("shm2")
def test_hooks_run_once():
    weight, original, wrapper = make()
    seen = []
    original.register_step_pre_hook(lambda *_: seen.append("before step"))
    wrapper.register_step_post_hook(lambda *_: seen.append("after step"))
    if hasattr(original, "register_load_state_dict_post_hook"):
        original.register_load_state_dict_post_hook(lambda it: seen.append(("loaded", it.param_groups[0]["lr"])))
        wrapper.load_state_dict(with_rate(wrapper, 0.5))
        original.load_state_dict(with_rate(original, 0.25))
        assert seen == [("loaded", 0.5), ("loaded", 0.25)]
        seen.clear()
    step(wrapper, weight)
    # torch 2.1 runs no step hooks after the process has compiled something.
    assert seen == (["before step", "after step"] if step_hooks_run() else [])


class Replaces(torch.optim.SGD):
    """Optimizer that loads a state without calling __setstate__."""

    def load_state_dict(self, state_dict):
        pairs = zip(state_dict, self.param_groups, strict=True)
        self.param_groups = [{**saved, "params": group["params"]} for saved, group in pairs]


@either
@on_torch_ranks("shm2")
def test_an_optimizer_that_loads_in_its_own_way(loads):
    weight = torch.nn.Parameter(torch.zeros(1))
    original = Replaces([weight], 1.0)
    early = torch.optim.lr_scheduler.ExponentialLR(original, gamma=0.5)
    wrapper = hvd.DistributedOptimizer(original, [("weight", weight)])
    saved = [{key: value for key, value in original.param_groups[0].items() if key != "params"} | {"lr": 4.0}]
    (original if loads == "original" else wrapper).load_state_dict(saved)
    check_shared(original, wrapper)
    assert step(wrapper, weight) == 4.0
    early.step()
    assert step(wrapper, weight) == 2.0


@on_torch_ranks("shm2")
def test_neither_keeps_the_wrapper_alive():
    _weight, original, wrapper = make()
    alive = weakref.ref(wrapper)
    gc.collect()
    gc.disable()
    try:
        del wrapper
        assert alive() is None
        original.load_state_dict(with_rate(original, 0.5))
        kept = weakref.ref(original)
        del original
        assert kept() is None
    finally:
        gc.enable()


# Copies.


@pytest.mark.checked_numbers("a copy's step, which reduces nothing", against="a single process")
@both_kinds
@on_torch_ranks("shm2")
def test_copies_are_plain_optimizers_and_say_so(op):
    weight, _original, wrapper = make(op, momentum=0.5)
    step(wrapper, weight)
    for make_copy in (
        copy.deepcopy,
        copy.copy,
        lambda it: pickle.loads(pickle.dumps(it)),
        lambda it: pickle.loads(pickle.dumps(it, protocol=0)),
        lambda it: copy.deepcopy({"weight": weight, "optimizer": it})["optimizer"],
    ):
        with pytest.warns(HorovodWarning, match="plain SGD") as caught:
            made = make_copy(wrapper)
        assert caught[0].filename == step.__code__.co_filename
        assert type(made) is torch.optim.SGD
        assert made.state_dict()["param_groups"] == wrapper.state_dict()["param_groups"]
        (parameter,) = made.param_groups[0]["params"]
        parameter.grad = torch.full((1,), 1.0 + hvd.rank())
        before = parameter.item()
        made.step()  # a step that does not involve the other rank
        assert before - parameter.item() == pytest.approx(1.5 + hvd.rank())
        made.load_state_dict(made.state_dict())
        if make_copy is copy.copy:  # a shallow copy shares its tensors with the wrapper
            weight.data.fill_(before)
            wrapper.state[weight]["momentum_buffer"].fill_(1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = hvd.DistributedOptimizer(made, op=OPS[op])
        assert again.param_groups is made.param_groups


@on_torch_ranks("shm2")
def test_the_original_is_copied_without_a_word():
    _weight, original, wrapper = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made, pickled = copy.deepcopy(original), pickle.loads(pickle.dumps(original))
    for other in (made, pickled):
        assert type(other) is torch.optim.SGD
        other.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
        other.load_state_dict(other.state_dict())
        other.param_groups[0]["lr"] = 0.1
    assert len(wrapper.param_groups) == 1
    assert wrapper.param_groups[0]["lr"] == 1.0


@on_torch_ranks("shm2")
def test_a_pair_stays_a_pair_in_a_copy():
    _weight, original, wrapper = make()
    scheduler = torch.optim.lr_scheduler.StepLR(original, 1, gamma=0.5)
    with pytest.warns(HorovodWarning, match="plain SGD"):
        made_scheduler_optimizer, made = copy.deepcopy((scheduler.optimizer, wrapper))
    assert made is made_scheduler_optimizer
