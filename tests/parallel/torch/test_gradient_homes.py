# SPDX-License-Identifier: Apache-2.0
"""Gradients in shared memory: training gives the bits of training without it, with every option and usual idiom."""

import copy
import dataclasses
import gc
import io
import warnings
import weakref
from unittest import mock

import pytest
import torch
from harness.torch_homes import (
    MOVES,
    alike,
    is_home,
    loss_of,
    make_optimizer,
    make_parameters,
    on_both,
    on_two,
)

import horovod.torch as hvd
from horovod.common.context import default_context

DTYPES = ["float16", "bfloat16", "float32", "float64"]


class HalfTheValue(hvd.Compression.none):
    """Compressor of a user."""

    @staticmethod
    def compress(tensor):
        return tensor / 2, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor * 2


OPTIONS = {
    "none": {},
    "sum": {"op": hvd.Sum},
    "predivided": {"gradient_predivide_factor": 4.0},
    "two passes": {"backward_passes_per_step": 2},
    "groups": {"groups": 2},
    "sparse as dense": {"sparse_as_dense": True},
    "fp16": {"compression": hvd.Compression.fp16},
    "bf16": {"compression": hvd.Compression.bf16},
    "a user's compressor": {"compression": HalfTheValue},
    "bucket views": {"gradient_as_bucket_view": True},
}
STAY = ("a user's compressor",)


def train(parameters, optimizer, steps=4, passes=1, set_to_none=True):
    """Return the gradients of all steps, and the parameters after them."""
    results = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        for part in range(passes):
            loss_of(parameters, step + 100 * part).backward()
        optimizer.step()
        results += [parameter.grad.clone() for parameter in parameters]
    return results, [parameter.detach().clone() for parameter in parameters]


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("option", OPTIONS)
@on_both()
def test_options(option, wait):
    options = OPTIONS[option]
    moved = []

    def scenario():
        parameters = make_parameters()
        optimizer = make_optimizer(parameters, torch.optim.Adam, **options)
        optimizer._reducer._wait_in_backward = wait
        result = train(parameters, optimizer, passes=options.get("backward_passes_per_step", 1))
        moved.append([is_home(parameter.grad) for parameter in parameters])
        return result

    answer = alike(scenario)
    if option != "bucket views":
        assert moved == [[False] * 3, [MOVES and option not in STAY] * 2 + [False]]
    return answer


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@on_both()
def test_dtypes(dtype, set_to_none):
    moved = []

    def scenario():
        parameters = make_parameters(getattr(torch, dtype))
        result = train(parameters, make_optimizer(parameters), set_to_none=set_to_none)
        moved.append([is_home(parameter.grad) for parameter in parameters])
        return result

    answer = alike(scenario)
    assert moved == [[False] * 3, [MOVES] * 2 + [False]]
    return answer


@on_both()
def test_a_home_is_used_in_every_step():
    large, *_ = parameters = make_parameters()
    optimizer = make_optimizer(parameters)
    places = set()
    for step in range(4):
        optimizer.zero_grad()
        loss_of(parameters, step).backward()
        places.add((large.grad.data_ptr(), is_home(large.grad)))
        optimizer.step()
    if MOVES:
        assert len(places) == 1
    assert {home for _, home in places} == {MOVES}


@pytest.mark.parametrize(
    ("chosen", "overlap", "moves"),
    [(None, False, True), (None, True, False), (True, True, True), (False, False, False)],
    ids=["by itself", "overlapping", "on", "off"],
)
@on_two()
def test_when_gradients_move(chosen, overlap, moves):
    explicit = {**default_context.settings.explicit, "HOROVOD_TORCH_OVERLAP": overlap}
    explicit["HOROVOD_TORCH_SHARED_GRADIENTS"] = chosen
    with mock.patch.object(
        default_context, "_settings", dataclasses.replace(default_context.settings, explicit=explicit)
    ):
        parameters = make_parameters()
        train(parameters, make_optimizer(parameters), steps=1)
    assert [is_home(parameter.grad) for parameter in parameters] == [moves and MOVES] * 2 + [False]


@pytest.mark.parametrize("deterministic", [False, True])
@on_two()
def test_what_is_rounded_on_one_host_is_staged(deterministic):
    explicit = {**default_context.settings.explicit, "HOROVOD_DETERMINISTIC": deterministic}
    settings = dataclasses.replace(default_context.settings, explicit=explicit)
    with mock.patch.object(default_context, "_settings", settings):
        for compression in (hvd.Compression.none, hvd.Compression.bf16):
            large, *_ = parameters = make_parameters()
            train(parameters, make_optimizer(parameters, compression=compression), steps=1)
            stays = deterministic and compression is not hvd.Compression.none
            assert is_home(large.grad) == (MOVES and not stays)


@on_two()
def test_only_large_ones_move():
    parameters = [torch.nn.Parameter(torch.ones(count)) for count in (16_383, 16_384)]
    train(parameters, make_optimizer(parameters), steps=2)
    assert [is_home(parameter.grad) for parameter in parameters] == [False, MOVES]


@on_both()
def test_process_set():
    members = hvd.add_process_set([0, 1]) if hvd.size() > 2 else hvd.global_process_set

    def scenario():
        parameters = make_parameters()
        result = train(parameters, make_optimizer(parameters, process_set=members))
        if hvd.rank() < 2:
            return result
        return None

    alike(scenario)
    if hvd.size() > 2:
        hvd.remove_process_set(members)


@on_two()
def test_ranks_whose_gradients_go_different_ways():
    """In each step one rank has its gradients in shared memory and the other does not; they take turns."""

    def scenario():
        parameters = make_parameters()
        optimizer = make_optimizer(parameters)
        kept, results = [], []
        for step in range(6):
            optimizer.zero_grad()
            loss_of(parameters, step).backward()
            if step % 2 == hvd.rank():
                kept = [parameter.grad for parameter in parameters]
            optimizer.step()
            results += [parameter.grad.clone() for parameter in parameters]
        return results, kept

    alike(scenario)


@on_two()
def test_gradients_in_channels_last_keep_their_strides():
    def scenario():
        torch.manual_seed(2)
        model = torch.nn.Sequential(torch.nn.Conv2d(128, 160, 1), torch.nn.Conv2d(160, 64, 3))
        model = model.to(memory_format=torch.channels_last)
        optimizer = make_optimizer(list(model.parameters()))
        for step in range(2):
            optimizer.zero_grad()
            inputs = torch.randn(2, 128, 5, 5, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
            model(inputs.to(memory_format=torch.channels_last)).square().sum().backward()
            optimizer.step()
        return [(one.detach(), one.grad, one.grad.stride(), one.grad.is_contiguous()) for one in model.parameters()]

    alike(scenario)


@on_two()
def test_clipping_scaling_and_several_passes_over_one_graph():
    def scenario():
        parameters = make_parameters()
        optimizer = make_optimizer(parameters, backward_passes_per_step=2)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if hasattr(torch.amp, "GradScaler") else None
        for step in range(3):
            optimizer.zero_grad()
            loss = loss_of(parameters, step)
            scaled = scaler.scale(loss) if scaler else loss
            scaled.backward(retain_graph=True)
            scaled.backward()
            if scaler:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
        return [(one.detach(), one.grad) for one in parameters]

    alike(scenario)


@on_two()
def test_closures():
    def scenario():
        parameters = make_parameters()
        optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(parameters, lr=0.1, max_iter=3))

        def closure():
            optimizer.zero_grad()
            loss = loss_of(parameters, 1)
            loss.backward()
            return hvd.allreduce(loss.detach(), name="loss")

        for _ in range(2):
            optimizer.step(closure)
        return parameters

    alike(scenario)


@on_two()
def test_derivatives_of_gradients():
    def scenario():
        parameters = make_parameters()
        optimizer = make_optimizer(parameters)
        apart = torch.autograd.grad(loss_of(parameters, 5), parameters)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about a reference cycle, which zero_grad() breaks
            loss_of(parameters, 0).backward(create_graph=True)
        first = [parameter.grad for parameter in parameters]
        second = torch.autograd.grad(sum((one**2).sum() for one in first), parameters)
        optimizer.step()
        optimizer.zero_grad()
        return apart, first, second

    alike(scenario)


@on_two()
def test_copies_of_gradients():
    def scenario():
        torch.manual_seed(4)
        model = torch.nn.Linear(190, 181)
        optimizer = make_optimizer(list(model.parameters()))
        loss_of(list(model.parameters()), 0).backward()
        twin = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save([one.grad for one in model.parameters()], file)
        shared = model.weight.grad.clone().share_memory_()
        optimizer.step()
        optimizer.zero_grad()
        loss_of(list(model.parameters()), 1).backward()
        optimizer.step()
        file.seek(0)
        return [one.grad for one in twin.parameters()], torch.load(file), shared, model.weight.grad

    alike(scenario)


@on_two()
def test_a_gradient_can_move_on_into_memory_of_torchs():
    def scenario():
        large, *_ = parameters = make_parameters()
        optimizer = make_optimizer(parameters)
        results = []
        for step in range(3):
            optimizer.zero_grad()
            loss_of(parameters, step).backward()
            large.grad.share_memory_()
            optimizer.step()
            results.append((large.grad.clone(), large.grad.is_shared()))
        return results

    alike(scenario)


@on_two()
def test_a_pass_too_many_is_refused_though_the_gradient_could_move_meanwhile():
    large, *_ = parameters = make_parameters()
    optimizer = make_optimizer(parameters)
    loss_of(parameters, 0).backward()
    optimizer.step()
    kept = large.grad
    optimizer.zero_grad()
    loss_of(parameters, 1).backward()
    del kept
    with pytest.raises(AssertionError, match="computed again before"):
        loss_of(parameters, 2).backward()
    optimizer.synchronize()


@on_two()
def test_optimizers_that_are_gone_leave_nothing():
    """The parameters of freed optimizers are freed, and the shared memory of all but the last few gradients too.

    Ordinary memory is not measured, because the heap of a process that has run other tests shrinks and grows by itself.
    """

    def resident_shared_memory():
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssShmem"))

    def run(times):
        for number in range(times):
            parameter = torch.nn.Parameter(torch.zeros(500_000))
            optimizer = make_optimizer([parameter], named_parameters=[(f"run.{number % 3}", parameter)])
            (parameter * 2).sum().backward()
            optimizer.step()
            assert is_home(parameter.grad) == MOVES
            parameters.append(weakref.ref(parameter))

    parameters = []
    run(20)
    before = resident_shared_memory()
    run(60)
    assert resident_shared_memory() - before < 30_000  # kilobytes; 120 MB of gradients were made
    gc.collect()
    assert not any(parameter() is not None for parameter in parameters)
