# SPDX-License-Identifier: Apache-2.0
"""Code that keeps or changes a gradient gets the results that it would get without shared memory."""

import numpy as np
import pytest
import torch
from harness.torch_homes import MOVES, alike, is_home, loss_of, make_optimizer, make_parameters, on_both, on_two

import horovod.torch as hvd

KEEPERS = {
    "itself": lambda grad: grad,
    "detached": lambda grad: grad.detach(),
    "as data": lambda grad: grad.data,
    "numpy": lambda grad: grad.numpy(),
    "detached numpy": lambda grad: grad.detach().numpy(),
    "a view": lambda grad: grad.view(-1),
    "a slice": lambda grad: grad[2:7],
    "dlpack": lambda grad: torch.from_dlpack(grad),
    "storage": lambda grad: torch.empty(0).set_(grad.untyped_storage()),
}


def tensors(kept):
    return [torch.from_numpy(one.copy()) if isinstance(one, np.ndarray) else one.clone() for one in kept]


@pytest.mark.parametrize("keeper", KEEPERS)
@on_both()
def test_a_kept_gradient_stays_and_its_home_serves_again_once_it_is_dropped(keeper):
    def scenario():
        large, *_ = parameters = make_parameters()
        optimizer = make_optimizer(parameters)
        kept, results, homes = [], [], set()
        for step in range(6):
            optimizer.zero_grad()
            loss_of(parameters, step).backward()
            if is_home(large.grad):
                homes.add(large.grad.data_ptr())
            # Rank 1 keeps none: the gradients of the other ranks then take a different path, and rank 1's must follow.
            if step == 1 and hvd.rank() != 1:
                kept.append(KEEPERS[keeper](large.grad))
                results += tensors(kept)
            optimizer.step()
            results.append(large.grad.clone())
            if step == 3:
                results += tensors(kept)
                kept.clear()
        return *results[-6:], len(homes), is_home(large.grad)

    *_, homes, moved = scenario()
    assert (homes, moved) == ((1, True) if MOVES else (0, False))
    alike(lambda: scenario()[:-2])


HOOKS = {
    "after accumulation": lambda parameter, hook: parameter.register_post_accumulate_grad_hook(
        lambda parameter: hook(parameter.grad)
    ),
    "before accumulation": lambda parameter, hook: parameter.register_hook(lambda grad: hook(grad) and None),
}


@pytest.mark.parametrize("keeper", KEEPERS)
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("loss", ["fresh", "expanded"])
@pytest.mark.parametrize("early", [True, False])
@on_two()
def test_what_a_hook_keeps_changes_as_without_homes(keeper, hook, loss, early):
    def scenario():
        large, *_ = parameters = make_parameters()
        kept = []

        def keep(grad):
            kept.append(KEEPERS[keeper](grad))

        if early:
            HOOKS[hook](large, keep)
        optimizer = make_optimizer(parameters)
        if not early:
            HOOKS[hook](large, keep)
        for step in range(3):
            optimizer.zero_grad()
            total = loss_of(parameters, step) if loss == "fresh" else sum(one.sum() for one in parameters)
            (total * (hvd.rank() + 1)).backward()
            optimizer.step()
        assert len(kept) == 3
        return tensors(kept)

    alike(scenario)


@pytest.mark.parametrize("as_view", ["view", "detached", "as data"])
@pytest.mark.parametrize("set_to_none", [True, False])
@on_two()
def test_a_flat_buffer_of_the_users_receives_what_is_reduced(as_view, set_to_none):
    views = {"view": lambda it: it, "detached": lambda it: it.detach(), "as data": lambda it: it.data}

    def scenario():
        parameters = make_parameters()
        flat = torch.zeros(sum(one.numel() for one in parameters))
        optimizer = make_optimizer(parameters)
        results = []
        for step in range(3):
            optimizer.zero_grad(set_to_none=set_to_none)
            if set_to_none or step == 0:
                flat.zero_()
                pieces = flat.split([one.numel() for one in parameters])
                for parameter, piece in zip(parameters, pieces, strict=True):
                    parameter.grad = views[as_view](piece.view_as(parameter))
                del piece, pieces
            loss_of(parameters, step).backward()
            optimizer.step()
            results.append(flat.clone())
        return results

    alike(scenario)


@on_two()
def test_a_buffer_for_each_parameter_receives_what_is_reduced():
    def scenario():
        parameters = make_parameters()
        buffers = [torch.zeros_like(one).detach() for one in parameters]
        optimizer = make_optimizer(parameters)
        for step in range(2):
            for parameter, buffer in zip(parameters, buffers, strict=True):
                buffer.zero_()
                parameter.grad = buffer.detach()
            loss_of(parameters, step).backward()
            optimizer.step()
        return buffers

    alike(scenario)


class GivesItsBuffer(torch.autograd.Function):
    """Function whose gradient is a part of a buffer that the user holds."""

    buffer = torch.empty(0)

    @staticmethod
    def forward(ctx, value):
        return value.sum()

    @staticmethod
    def backward(ctx, grad):
        return GivesItsBuffer.buffer[8:]


@on_two()
def test_a_gradient_that_is_part_of_something_larger():
    def from_a_function():
        parameter = torch.nn.Parameter(torch.zeros(30_000))
        GivesItsBuffer.buffer = torch.full((30_008,), hvd.rank() + 1.0)
        optimizer = make_optimizer([parameter])
        GivesItsBuffer.apply(parameter).backward()
        optimizer.step()
        return GivesItsBuffer.buffer, parameter

    def from_a_concatenation():
        parameters = [torch.nn.Parameter(torch.zeros(30_000)) for _ in range(2)]
        optimizer = make_optimizer(parameters)
        whole = torch.full((60_000,), hvd.rank() + 1.0)
        torch.cat(parameters).backward(whole)
        optimizer.step()
        return whole, parameters

    alike(from_a_function)
    alike(from_a_concatenation)


@on_two()
def test_tied_weights_and_added_groups():
    def scenario():
        first, second, third = make_parameters()
        optimizer = make_optimizer([first])
        optimizer.add_param_group({"params": [second, third]})
        for step in range(3):
            optimizer.zero_grad()
            (loss_of([first, second, third], step) + loss_of([first], step + 7)).backward()
            optimizer.step()
        return first, second, third, first.grad

    alike(scenario)
