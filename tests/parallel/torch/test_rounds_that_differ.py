# SPDX-License-Identifier: Apache-2.0
"""Ranks that act differently between two steps: one test for each habit of users' scripts, with its error."""

import re
import threading
import warnings

import pytest
import torch
from harness.arrays import odd_one_out
from harness.torch_training import on_torch_ranks
from harness.waiting import DEADLOCK2
from harness.worlds import SHM3

import horovod.torch as hvd

WORLDS = ("shm2", SHM3)


def weights(count=2):
    return [torch.nn.Parameter(torch.ones(1)) for _ in range(count)]


def wrap(parameters, **options):
    wait = options.pop("wait", True)
    named = [(f"w{number}", parameter) for number, parameter in enumerate(parameters)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, 1.0), named, op=hvd.Sum, **options)
    optimizer._reducer._wait_in_backward = wait
    return optimizer


def backward(*parameters, factor=1.0):
    sum(factor * parameter.sum() for parameter in parameters).backward()


def values(parameters):
    return [parameter.item() for parameter in parameters]


def on_every_rank_alike(parameters, optimizer):
    """Check that training can go on after an error on all ranks."""
    optimizer.zero_grad()
    before = values(parameters)
    backward(*parameters)
    optimizer.step()
    assert values(parameters) == [value - hvd.size() for value in before]


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
@on_torch_ranks(*WORLDS)
def test_a_rank_that_skips_backward_gives_zeros(passes, wait):
    parameters = weights()
    optimizer = wrap(parameters, backward_passes_per_step=passes, wait=wait)
    for skipping in (False, True, False):
        optimizer.zero_grad()
        if not (skipping and odd_one_out()):
            for _ in range(passes):
                backward(*parameters)
        optimizer.step()
    return values(parameters)


@pytest.mark.parametrize("wait", [True, False])
@on_torch_ranks(*WORLDS)
def test_windows_of_different_lengths(wait):
    parameters = weights()
    optimizer = wrap(parameters, backward_passes_per_step=3, wait=wait)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(hvd.rank() + 1):
            backward(*parameters)
        optimizer.step()
    assert values(parameters) == [1.0 - 2 * sum(range(1, hvd.size() + 1))] * 2


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("wait", [True, False])
@on_torch_ranks(*WORLDS)
def test_frozen_on_one_rank_only(wait, group):
    parameters = weights()
    optimizer = wrap(parameters, wait=wait, groups=[parameters] if group else None)
    parameters[1].requires_grad_(hvd.rank() == 0)
    for used in ((0, 1), (0,), (1,), ()):
        optimizer.zero_grad()
        trained = [parameters[number] for number in used if parameters[number].requires_grad]
        if trained:
            backward(*trained)
        optimizer.step()
    assert values(parameters) == [1.0 - 2 * hvd.size(), -1.0]
    return values(parameters)


@on_torch_ranks("shm2")
def test_a_thawed_parameter_is_reduced_at_once():
    parameters = weights()
    parameters[1].requires_grad_(False)
    optimizer = wrap(parameters)
    for _ in range(2):
        optimizer.zero_grad()
        backward(parameters[0])
        # A parameter that no rank trains is neither waited for nor negotiated again.
        assert optimizer._reducer._round.complete
        optimizer.step()
    parameters[1].requires_grad_(True)
    for expected in (-1.0, -3.0):
        optimizer.zero_grad()
        backward(*parameters)
        optimizer.step()
        assert parameters[1].item() == expected


@pytest.mark.parametrize("skipper", [0, 1])
@pytest.mark.parametrize("wait", [True, False])
@on_torch_ranks("shm2")
def test_a_step_that_one_rank_leaves_out_is_an_error_on_all(skipper, wait):
    parameters = weights()
    optimizer = wrap(parameters, wait=wait)

    def train():
        for step in range(3):
            optimizer.zero_grad()
            backward(*parameters)
            if step == 1 and hvd.rank() == skipper:
                optimizer.synchronize()  # this rank's gradient scaler skips the step
                continue
            optimizer.step()

    text = rf"rank {1 - skipper} has called optimizer.step\(\) while rank {skipper} has not"
    with pytest.raises(hvd.HorovodInternalError, match=text):
        train()
    on_every_rank_alike(parameters, optimizer)


@on_torch_ranks("shm2")
def test_a_batch_that_one_rank_leaves_out_pairs_up_with_the_next():
    parameters = weights()
    optimizer = wrap(parameters)
    batches = 3 if hvd.rank() == 0 else 4
    for _ in range(batches):  # rank 0 skips one batch because of `if loss.isnan(): continue`
        optimizer.zero_grad()
        backward(*parameters)
        optimizer.step()
    assert hvd.join() == 1
    assert values(parameters) == [1.0 - 2 * 3 - (1 if hvd.rank() == 1 else 0)] * 2
    hvd.broadcast_parameters(parameters, root_rank=1)
    on_every_rank_alike(parameters, optimizer)


@pytest.mark.parametrize("unused", [False, True])
@on_torch_ranks(*WORLDS)
def test_zero_grad_before_step_on_one_rank_is_an_error_on_all(unused):
    parameters = weights()
    optimizer = wrap(parameters)
    optimizer.zero_grad()

    def train():
        for _ in range(2):
            backward(*parameters[: 1 if unused else 2])
            if odd_one_out():
                optimizer.zero_grad()
            optimizer.step()
            optimizer.zero_grad()

    text = "has dropped reduced gradients" if unused else r"has called optimizer.step\(\) while"
    with pytest.raises(hvd.HorovodInternalError, match=text):
        train()
    on_every_rank_alike(parameters, optimizer)


@on_torch_ranks("shm2")
def test_zero_grad_before_step_on_all_ranks_is_a_step_without_gradients():
    parameters = weights()
    optimizer = wrap(parameters, groups=[parameters])
    for used in (parameters[:1], parameters):  # the first time, part of a group still waits for the rest
        backward(*used)
        optimizer.zero_grad()
        optimizer.step()
    assert values(parameters) == [1.0, 1.0]
    on_every_rank_alike(parameters, optimizer)


@on_torch_ranks("shm2")
def test_gradients_dropped_past_the_optimizer_on_all_ranks_whose_graphs_then_differ():
    parameters = weights()
    optimizer = wrap(parameters)
    backward(*parameters)
    for parameter in parameters:
        parameter.grad = None  # what model.zero_grad() does
    backward(parameters[hvd.rank()])
    optimizer.step()
    assert values(parameters) == [0.0, 0.0]


@on_torch_ranks("shm2")
def test_a_gradient_that_comes_after_others_have_reduced_it_is_refused_by_name():
    parameters = weights()
    optimizer = wrap(parameters)
    if hvd.rank() == 0:
        backward(*parameters)
    else:
        backward(parameters[0])
        with pytest.raises(AssertionError, match="w1 was computed by a later backward pass than on other ranks"):
            backward(parameters[1])
    hvd.barrier()
    optimizer.load_state_dict(optimizer.state_dict())
    on_every_rank_alike(parameters, optimizer)


@on_torch_ranks("shm2")
def test_a_rank_that_leaves_is_named_with_what_the_others_were_doing():
    for place in ("backward", "step"):
        parameters = weights()
        optimizer = wrap(parameters)
        if hvd.rank() == 0:
            with pytest.raises(
                hvd.HorovodInternalError, match=rf"Rank 1 finished.*first parameter is 'w0'.*join.*{place}\(\)"
            ):
                backward(*parameters) if place == "backward" else optimizer.step()
        hvd.shutdown()
        hvd.init()


@on_torch_ranks(DEADLOCK2)
def test_other_parameters_on_another_rank():
    for place in ("backward", "step"):
        parameters = weights(2 + hvd.rank())
        optimizer = wrap(parameters)
        text = (
            r"rank 0 in .* first parameter is 'w0' \(2 parameters, \w{8}\.\d+\) .* 'w0' \(3 parameters, .*"
            r"The optimizers of all ranks must have the same parameters: "
            r"'w2' is missing on rank 0 and float32 of shape \(1,\) on rank 1\.$"
        )
        with pytest.raises(hvd.HorovodMismatchError, match=text):
            backward(*parameters) if place == "backward" else optimizer.step()


@on_torch_ranks(DEADLOCK2)
def test_another_first_parameter_on_another_rank():
    for place in ("backward", "step"):
        parameters = weights()
        named = [("ab"[hvd.rank()], parameters[0]), ("c", parameters[1])]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, 1.0), named)
        with pytest.raises(hvd.HorovodMismatchError) as raised:
            backward(*parameters) if place == "backward" else optimizer.step()
        line = r"\((?:\S*/)?test_rounds_that_differ\.py:\d+\)"
        of_both = [
            rf"rank {rank} in backward\(\) or step\(\) of the optimizer whose first parameter is '{first}' "
            rf"\(2 parameters, \w{{8}}\.\d\) {line}"
            for rank, first in enumerate("ab")
        ]
        expected = rf"Ranks wait for different operations: {', '.join(of_both)}\. All ranks must call the same .*"
        assert re.fullmatch(expected, str(raised.value)), str(raised.value)
        difference = "'a' is float32 of shape (1,) on rank 0 and missing on rank 1."
        assert str(raised.value).endswith(f"The optimizers of all ranks must have the same parameters: {difference}")
    with pytest.raises(hvd.HorovodMismatchError, match=r"rank 0 in allreduce 'x' .*rank 1 in backward\(\)") as raised:
        hvd.allreduce(torch.ones(1), name="x") if hvd.rank() == 0 else backward(*parameters)
    assert "same parameters" not in str(raised.value)


@on_torch_ranks("shm2")
def test_a_backward_pass_that_fails_on_one_rank_is_dropped_with_its_gradients():
    parameters = weights()
    optimizer = wrap(parameters)
    for step in range(3):
        optimizer.zero_grad()
        fails = step == 1 and odd_one_out()
        kept = parameters[0] * 1.0
        if fails:
            kept.register_hook(refuse)
        loss = kept.sum() + parameters[1].sum()
        if fails:
            with pytest.raises(ZeroDivisionError):
                loss.backward()
            optimizer.zero_grad()
        else:
            loss.backward()
        optimizer.step()
    assert values(parameters) == [1.0 - 5, 1.0 - 5]


def refuse(_):
    raise ZeroDivisionError


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("as_dense", [True, False])
@on_torch_ranks(*WORLDS)
def test_sparse_gradients_that_a_rank_has_never_had(as_dense, wait):
    table = torch.nn.Embedding(4, 3, sparse=True)
    with torch.no_grad():
        table.weight.zero_()
    optimizer = wrap([table.weight], sparse_as_dense=as_dense, wait=wait)
    for step in range(3):
        optimizer.zero_grad()
        if hvd.rank() == step:
            table(torch.tensor([1, 3, 3])).sum().backward()
        optimizer.step()
        assert table.weight.grad.is_sparse
    assert table.weight[:, 0].tolist() == [0.0, -1.0 * hvd.size(), 0.0, -2.0 * hvd.size()]


@on_torch_ranks("shm2")
def test_sparse_gradients_in_groups_and_beside_dense_ones():
    rows, other = torch.nn.Parameter(torch.zeros(4, 3)), weights(1)[0]
    for groups in (None, [[rows, other]]):
        with torch.no_grad():
            rows.zero_()
        optimizer = wrap([rows, other], groups=groups)
        for sparse in (True, False, hvd.rank() == 0, hvd.rank() == 1):
            optimizer.zero_grad()
            looked_up = torch.nn.functional.embedding(torch.tensor([1]), rows, sparse=sparse)
            (looked_up.sum() + other.sum()).backward()
            optimizer.step()
        assert rows[:, 0].tolist() == [0.0, -8.0, 0.0, 0.0]


@on_torch_ranks("shm2")
def test_closures_that_run_unequally_often_are_an_error_on_all():
    parameters = weights()
    optimizer = wrap(parameters)

    def closure():
        optimizer.zero_grad()
        backward(*parameters)

    def train():
        for _ in range(2):
            closure()
            if hvd.rank() == 0:
                closure()
            optimizer.step()

    optimizer.step(closure)
    with pytest.raises(hvd.HorovodInternalError, match=r"has called optimizer.step\(\)"):
        train()
    on_every_rank_alike(parameters, optimizer)


@on_torch_ranks("shm2")
def test_either_idiom_of_a_step_on_either_rank():
    parameters = weights()
    optimizer = wrap(parameters)
    for step in range(4):
        optimizer.zero_grad()
        backward(*parameters[: 1 + step % 2])
        if (hvd.rank() + step // 2) % 2:
            optimizer.step()
        else:
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
    assert values(parameters) == [1.0 - 8, 1.0 - 4]
    optimizer.zero_grad()
    for _ in range(2):  # gradients are complete after backward(), so no synchronize() is needed
        backward(*parameters)
        with optimizer.skip_synchronize():
            optimizer.step()
        for parameter in parameters:
            parameter.grad.zero_()
    assert values(parameters) == [1.0 - 12, 1.0 - 8]


@on_torch_ranks("shm2")
def test_two_optimizers_whose_gradients_come_in_another_order_on_each_rank():
    first, second = weights(), weights()
    optimizers = [wrap(first), hvd.DistributedOptimizer(torch.optim.SGD(second, 1.0), zip("ab", second, strict=True))]
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        inner, outer = (first, second) if hvd.rank() == 0 else (second, first)
        # Autograd first reaches what was used last.
        sum(parameter.sum() for parameter in inner + outer).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert values(first + second) == [1.0 - 6, 1.0 - 6, 1.0 - 3, 1.0 - 3]


@on_torch_ranks("shm2")
def test_a_generator_and_a_discriminator_of_which_one_rank_leaves_out_one():
    generator, discriminator = weights(1), weights(1)
    first, second = wrap(generator), wrap(discriminator)
    for step in range(3):
        for parameters, optimizer in ((discriminator, second), (generator, first)):
            optimizer.zero_grad()
            if not (step == 1 and odd_one_out() and optimizer is second):
                backward(*parameters)
            optimizer.step()
    assert values(generator + discriminator) == [1.0 - 6, 1.0 - 5]


@on_torch_ranks("shm2")
def test_backward_in_several_threads():
    parameters = weights(4)
    optimizer = wrap(parameters, wait=False)
    for _ in range(5):
        optimizer.zero_grad()
        threads = [threading.Thread(target=backward, args=(parameter,)) for parameter in parameters]
        for thread in threads[:: 1 - 2 * hvd.rank()]:
            thread.start()
        for thread in threads:
            thread.join()
        optimizer.step()
    assert values(parameters) == [1.0 - 10] * 4


@on_torch_ranks("shm2")
def test_adasum_with_a_parameter_that_one_rank_has_frozen():
    parameters = weights()
    named = [("frozen", parameters[0]), ("trained", parameters[1])]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, 1.0), named, op=hvd.Adasum)
    parameters[0].requires_grad_(hvd.rank() == 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backward(*(parameter for parameter in parameters if parameter.requires_grad))
    optimizer.step()
    assert values(parameters) == [0.0, 0.0]
    return values(parameters)
