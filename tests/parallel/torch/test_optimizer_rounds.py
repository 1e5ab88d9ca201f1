# SPDX-License-Identifier: Apache-2.0
"""Rounds of DistributedOptimizer: the allowed orders of calls, graphs that differ between ranks, and wrong use."""

import pytest
import torch
from harness.torch_training import make_model, on_torch_ranks
from harness.waiting import DEADLOCK2

import horovod.torch as hvd


def one_weight(**options):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), **options)
    return model, optimizer


def backward(model, value=1.0):
    model(torch.full((1, 1), value)).sum().backward()


@on_torch_ranks("shm2")
def test_one_backward_too_many_is_refused():
    model, optimizer = one_weight()
    backward(model)
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        backward(model)
    optimizer.step()
    optimizer.zero_grad()
    backward(model)  # after the error, training continues with the next step
    optimizer.step()
    return model.weight.item()


@on_torch_ranks("shm2")
def test_a_step_that_was_left_out_starts_the_round_anew():
    model, optimizer = one_weight()
    backward(model)
    optimizer.zero_grad()  # users of a gradient scaler do this after a skipped step
    backward(model, float(hvd.rank()))
    assert model.weight.grad.item() == 0.5
    model.zero_grad()  # clears the gradients without calling the optimizer
    backward(model, float(hvd.rank() * 2))
    assert model.weight.grad.item() == 1.0
    optimizer.step()
    return model.weight.item()


@on_torch_ranks("shm2")
def test_zero_grad_during_a_reduction_is_refused():
    model, optimizer = one_weight()
    optimizer._reducer._wait_in_backward = False
    backward(model)
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    optimizer.synchronize()
    optimizer.zero_grad()


@on_torch_ranks("shm2")
def test_step_after_synchronize_warns_and_reduces_again():
    model, optimizer = one_weight(op=hvd.Sum)
    backward(model)
    optimizer.synchronize()
    assert model.weight.grad.item() == 2.0
    words = r"optimizer\.step\(\) called without optimizer\.skip_synchronize\(\)"
    with pytest.warns(UserWarning, match=words):
        optimizer.step()
    assert model.weight.grad.item() == 4.0
    optimizer.zero_grad()
    backward(model)
    optimizer.step()


@on_torch_ranks("shm2", "shm4")
def test_unused_parameters_and_graphs_that_differ_between_ranks():
    first, second, never = (torch.nn.Linear(1, 1, bias=False) for _ in range(3))
    model = torch.nn.ModuleList([first, second, never])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1.0), model.named_parameters())
    for step in range(3):
        optimizer.zero_grad()
        used = first if (hvd.rank() + step) % 2 == 0 else second
        used(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        assert first.weight.grad.item() == 0.5
        assert second.weight.grad.item() == 0.5
        assert never.weight.grad.item() == 0.0
    return [parameter.item() for parameter in model.parameters()]


@on_torch_ranks("shm2")
def test_two_losses_with_parameters_of_their_own_in_one_round():
    first, second = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([*first.parameters(), *second.parameters()], 1.0))
    backward(first, float(hvd.rank()))
    backward(second, float(hvd.rank() * 3))
    assert (first.weight.grad.item(), second.weight.grad.item()) == (0.5, 1.5)
    optimizer.step()


@on_torch_ranks("shm2")
def test_parameters_that_are_frozen_and_thawed():
    model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    model[0].weight.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.0), model.named_parameters())
    for thawed in (False, True, True, False, True):
        model[0].weight.requires_grad_(thawed)
        optimizer.zero_grad()
        backward(model, float(hvd.rank()))
        optimizer.step()
        assert model[1].weight.grad.item() == 0.5
        assert model[0].weight.grad is None if not thawed else model[0].weight.grad.item() == 0.5


@on_torch_ranks("shm2")
def test_parameter_group_added_later():
    first, second = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(first.parameters(), 1.0))
    optimizer.add_param_group({"params": list(second.parameters()), "lr": 0.1})
    backward(first, float(hvd.rank()))
    backward(second, float(hvd.rank()))
    assert (first.weight.grad.item(), second.weight.grad.item()) == (0.5, 0.5)
    optimizer.step()


@on_torch_ranks("shm2")
def test_state_dict_round_trip_and_step_hooks_run_once():
    model, optimizer = one_weight()
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    optimizer.load_state_dict(optimizer.state_dict())
    backward(model)
    optimizer.step()
    assert calls == [1]


@on_torch_ranks("shm2")
def test_hooks_end_with_the_optimizer():
    model, optimizer = one_weight()
    del optimizer
    backward(model, float(hvd.rank()))
    assert model.weight.grad.item() == hvd.rank()  # the hooks are gone, so the gradient is not reduced


@on_torch_ranks("one", "shm2")
def test_wrong_arguments():
    model = make_model()
    plain = torch.optim.SGD(model.parameters(), 0.1)
    named = list(model.named_parameters())
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        hvd.DistributedOptimizer(plain, backward_passes_per_step=0)
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        hvd.DistributedOptimizer(plain, op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="sequence of"):
        hvd.DistributedOptimizer(plain, named_parameters=model.parameters())
    with pytest.raises(ValueError, match="twice"):
        hvd.DistributedOptimizer(plain, named_parameters=[("same", parameter) for _, parameter in named])
    with pytest.raises(ValueError, match="does not name 2"):
        hvd.DistributedOptimizer(plain, named_parameters=named[2:])
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="twice"):
            hvd.DistributedOptimizer(plain, groups=[[model[0].weight], [model[0].weight]])
    with pytest.raises(ValueError, match="wrap it only once"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(plain))


@on_torch_ranks(DEADLOCK2)
def test_mismatched_gradients_raise_from_backward_on_all_ranks_and_training_goes_on():
    model = torch.nn.Linear(2 + hvd.rank(), 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), [("weight", model.weight)])
    text = r"'weight' is float32 of shape \(1, 2\) on rank 0 and float32 of shape \(1, 3\) on rank 1"
    with pytest.raises(hvd.HorovodMismatchError, match=text):
        model(torch.ones(1, 2 + hvd.rank())).sum().backward()
    model, optimizer = one_weight()
    backward(model)
    optimizer.step()


@on_torch_ranks("shm2", "shm4")
def test_join_lets_the_others_finish_their_epoch():
    model, optimizer = one_weight(named_parameters=None)
    for _ in range(hvd.rank() + 1):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
    assert hvd.join() == hvd.size() - 1
    hvd.broadcast_parameters(model.state_dict(), root_rank=hvd.size() - 1)
    return model.weight.item()


@on_torch_ranks("one")
def test_alone_nothing_is_hooked():
    model, optimizer = one_weight()
    assert not model.weight._post_accumulate_grad_hooks
    for _ in range(2):
        backward(model)
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    assert model.weight.item() == -1.0
