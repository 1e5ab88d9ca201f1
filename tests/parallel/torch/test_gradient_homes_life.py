# SPDX-License-Identifier: Apache-2.0
"""Gradients in shared memory across forks, and across the end of the world in which they were made."""

import os
import traceback

import pytest
import torch
from harness.torch_homes import (
    MOVES,
    alike,
    is_home,
    kind_of_memory,
    loss_of,
    make_optimizer,
    make_parameters,
    on_both,
    on_two,
)

import horovod.torch as hvd


class Child:
    """Forked child that runs `work` when `finish` is called. A failure of the child fails the test."""

    def __init__(self, work):
        self._go, go = os.pipe()
        self._told = go
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                torch.set_num_threads(1)  # OpenMP's other threads do not exist in the child
                os.close(go)
                os.read(self._go, 1)
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def finish(self):
        os.close(self._told)
        os.close(self._go)
        _, status = os.waitpid(self.pid, 0)
        assert status == 0


def step_once(parameters, optimizer, step):
    optimizer.zero_grad()
    loss_of(parameters, step).backward()
    optimizer.step()


FORKERS = {"all ranks": lambda: True, "one rank": lambda: hvd.rank() == 1}


@pytest.mark.parametrize("who", FORKERS)
@on_both()
def test_a_child_has_gradients_of_its_own(who):
    def scenario():
        parameters = make_parameters()
        optimizer = make_optimizer(parameters)
        results = []
        for step in range(5):
            step_once(parameters, optimizer, step)
            if step in (1, 2) and FORKERS[who]():
                before = [parameter.grad.clone() for parameter in parameters]

                def look(before=before):
                    for parameter, expected in zip(parameters, before, strict=True):
                        assert torch.equal(parameter.grad, expected)
                        parameter.grad.fill_(7.0)

                child = Child(look)
                step_once(parameters, optimizer, step + 50)
                child.finish()
            elif step in (1, 2):
                step_once(parameters, optimizer, step + 50)
            results += [parameter.grad.clone() for parameter in parameters]
        return results

    return alike(scenario)


@pytest.mark.parametrize("who", FORKERS)
@on_both()
def test_a_fork_while_gradients_are_being_reduced(who):
    """The child and this process must not see each other's writes to the gradients."""

    def scenario():
        parameters = make_parameters()
        optimizer = make_optimizer(parameters)
        optimizer._reducer._wait_in_backward = False
        results = []
        for step in range(4):
            optimizer.zero_grad()
            loss_of(parameters, step).backward()
            child = None
            if FORKERS[who]():
                reader, writer = os.pipe()

                def scribble(reader=reader):
                    for parameter in parameters:
                        parameter.grad.fill_(7.0)
                    os.read(reader, 1)
                    for parameter in parameters:
                        assert (parameter.grad == 7.0).all()

                child = Child(scribble)
            optimizer.step()
            results += [parameter.grad.clone() for parameter in parameters]
            if child is not None:
                os.write(writer, b".")
                child.finish()
                os.close(reader)
                os.close(writer)
        return results

    return alike(scenario)


@on_two()
def test_a_child_that_trains_is_told_that_it_cannot():
    parameters = make_parameters()
    optimizer = make_optimizer(parameters)
    for step in range(2):
        step_once(parameters, optimizer, step)
    optimizer.zero_grad()  # the gradients' shared memory is empty now, so the child does not inherit it

    def train():
        with pytest.raises(ValueError, match="forked process"):
            (parameters[0] * 2).sum().backward()

    child = Child(train)
    child.finish()
    step_once(parameters, optimizer, 2)
    assert is_home(parameters[0].grad) == MOVES


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.full((3,), float(index))


@on_two()
def test_workers_of_a_data_loader():
    def scenario():
        parameters = make_parameters()
        optimizer = make_optimizer(parameters)
        seen = []
        for step in range(3):
            step_once(parameters, optimizer, step)
            loader = torch.utils.data.DataLoader(Rows(), num_workers=1, multiprocessing_context="fork")
            for row in loader:
                seen.append(row)
                step_once(parameters, optimizer, step + len(seen))
        return seen, [(one.detach(), one.grad) for one in parameters]

    alike(scenario)


@on_two()
def test_outputs_that_a_fork_has_made_private_are_reduced():
    """Gathered results are in shared memory too."""
    gathered = None
    for _ in range(4):
        del gathered
        gathered = hvd.allgather(torch.full((40_000,), float(hvd.rank())), name="gathered")
    forks = hvd.rank() != 1
    assert kind_of_memory(gathered) == "shared"
    if forks:
        Child(lambda: None).finish()
    assert kind_of_memory(gathered) == ("private" if forks else "shared")
    hvd.allreduce_(gathered, op=hvd.Sum, name="in place")
    expected = torch.arange(hvd.size()).repeat_interleave(40_000) * float(hvd.size())
    assert torch.equal(gathered, expected)
    if not forks:
        Child(lambda: None).finish()
    hvd.allreduce_(gathered, op=hvd.Sum, name="in place")
    assert torch.equal(gathered, expected * hvd.size())


@pytest.mark.parametrize("set_to_none", [True, False])
@on_two()
def test_another_world(set_to_none):
    def scenario():
        large, *_ = parameters = make_parameters()
        optimizer = make_optimizer(parameters)
        results, kept = [], []
        for world in range(3):
            for step in range(3):
                optimizer.zero_grad(set_to_none=set_to_none)
                loss_of(parameters, 10 * world + step).backward()
                optimizer.step()
                results.append(large.grad.clone())
            kept.append(large.grad)
            was_home = is_home(large.grad)
            if world == 1:
                optimizer.zero_grad()  # the gradients' shared memory is empty when the world ends
            hvd.shutdown()
            if was_home:
                assert kind_of_memory(kept[-1]) == "private"
            kept[-1] += 1.0
            results.append([one.clone() for one in kept])
            large.grad = None
            hvd.init()
        return results

    alike(scenario)


@on_two()
def test_homes_are_made_anew_in_another_world():
    large, *_ = parameters = make_parameters()
    optimizer = make_optimizer(parameters)
    step_once(parameters, optimizer, 0)
    optimizer.zero_grad()
    hvd.shutdown()
    hvd.init()
    for step in range(1, 4):
        step_once(parameters, optimizer, step)
    assert is_home(large.grad) == MOVES
    before = large.grad.clone()
    child = Child(lambda: large.grad.fill_(7.0))
    child.finish()
    assert torch.equal(large.grad, before)


@on_two()
def test_a_backward_pass_without_a_world():
    parameters = make_parameters()
    optimizer = make_optimizer(parameters)
    step_once(parameters, optimizer, 0)
    optimizer.zero_grad()
    hvd.shutdown()
    with pytest.raises(ValueError, match="not been initialized"):
        (parameters[0] * 2).sum().backward()
    assert kind_of_memory(parameters[0].grad) == "ordinary"
    hvd.init()
