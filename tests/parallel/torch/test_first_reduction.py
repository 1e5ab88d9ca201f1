# SPDX-License-Identifier: Apache-2.0
"""Checks of an optimizer at its first reduction: parameters that differ, DDP on the same model, a group of one."""

import gc
import warnings
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from harness.arrays import odd_one_out
from harness.torch_training import on_torch_ranks
from harness.worlds import SHM3
from testkit.variables import free_port

import horovod.torch as hvd
from horovod.common import user_warnings
from horovod.common.context import default_context
from horovod.common.exceptions import HorovodWarning
from horovod.common.settings import Settings

WORLDS = ("shm2", SHM3)


class Net(torch.nn.Module):
    """Module with parameters of several types, layouts and sizes."""

    def __init__(self, value=1.0):
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.full((30, 40), value))
        self.brain = torch.nn.Parameter(torch.full((3, 5), value, dtype=torch.bfloat16))
        self.small = torch.nn.Parameter(torch.full((4, 2), value, dtype=torch.float16))
        self.wide = torch.nn.Parameter(torch.full((4,), value, dtype=torch.float64))
        self.image = torch.nn.Parameter(torch.full((2, 3, 4, 4), value).to(memory_format=torch.channels_last))
        self.part = torch.nn.Parameter(torch.full((4, 4), value)[:, 1:3])
        self.empty = torch.nn.Parameter(torch.empty(0, 3))


NAMES = [name for name, parameter in Net().named_parameters() if parameter.numel()]


def wrap(model, wait=True, **options):
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.5), model.named_parameters(), **options)
    if options.get("op") != hvd.Adasum:
        optimizer._reducer._wait_in_backward = wait
    return optimizer


def step(model, optimizer):
    optimizer.zero_grad()
    sum(it.float().sum() for it in model.parameters() if it.requires_grad).backward()
    optimizer.step()


def warnings_of(action):
    """Run the action. Return the Horovod warnings of every rank."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    mine = [(str(it.message), it.filename) for it in caught if issubclass(it.category, HorovodWarning)]
    return hvd.allgather_object(mine, name="warnings")


def steps_of(model, optimizer, count=2):
    def steps():
        for _ in range(count):
            step(model, optimizer)

    return steps


@pytest.mark.parametrize("name", NAMES)
@on_torch_ranks("shm2")
def test_any_parameter_that_differs_is_named(name):
    model = Net()
    if odd_one_out():
        with torch.no_grad():
            parameter = getattr(model, name)
            parameter[(-1,) * parameter.dim()] += 0.0625
    (warning,), *others = warnings_of(steps_of(model, wrap(model)))
    assert warning[0].startswith(
        f"Parameter '{name}' differs between ranks 0 and 1: call hvd.broadcast_parameters(model.state_dict(), "
    )
    assert warning[1] == __file__
    assert others == [[]]


@pytest.mark.parametrize("options", [{}, {"wait": False}, {"op": "Adasum"}], ids=str)
@on_torch_ranks("shm2", "shm4")
def test_once_and_on_one_rank(options):
    torch.manual_seed(hvd.rank() // 2 if hvd.size() > 2 else hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    options = {key: hvd.Adasum if value == "Adasum" else value for key, value in options.items()}
    optimizer = wrap(model, **options)
    (warning,), *others = warnings_of(steps_of(model, optimizer))
    assert warning[0].startswith(f"Parameter '0.weight' differs between ranks 0 and {hvd.size() // 2}: ")
    assert "(3 more differ.)" in warning[0]
    assert not any(others)
    assert not any(warnings_of(steps_of(model, optimizer)))


@on_torch_ranks(*WORLDS)
def test_nothing_is_said_of_equal_parameters_or_of_those_that_are_not_trained():
    model = Net()
    model.matrix.requires_grad_(False)
    with torch.no_grad():
        model.matrix.fill_(hvd.rank())
    model.brain.requires_grad_(not odd_one_out())  # one rank does not train this parameter, and its value differs there
    if odd_one_out():
        with torch.no_grad():
            model.brain.fill_(7)
    assert not any(warnings_of(steps_of(model, wrap(model))))


@on_torch_ranks("shm2")
def test_names_count_and_not_the_order_of_parameters():
    first, one, two = (torch.nn.Parameter(torch.full((3,), float(it))) for it in range(3))
    named = [("first", first), ("one", one), ("two", two)]
    ordered = [first, one, two] if hvd.rank() == 0 else [first, two, one]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ordered, 0.1), named)

    def train():
        sum(ordered).sum().backward()
        optimizer.step()

    assert not any(warnings_of(train))


@on_torch_ranks("shm2")
def test_the_setting_turns_it_off():
    model = Net(float(hvd.rank()))
    before = default_context._settings
    # The setting may also be off on one rank only: ranks that check and ranks that do not must get along.
    for off, said in ((True, False), (hvd.rank() == 0, False), (False, True)):
        default_context._settings = Settings({"HOROVOD_CHECK_PARAMETERS": False}) if off else before
        try:
            optimizer = wrap(model)
        finally:
            default_context._settings = before
        assert any(warnings_of(steps_of(model, optimizer, count=1))) == said


@on_torch_ranks(SHM3)
def test_a_process_set_is_looked_at_alone():
    members = hvd.add_process_set([1, 2])
    model = Net(0.0 if hvd.rank() == 0 else 1.0)
    assert not any(warnings_of(steps_of(model, wrap_in(members, model))))
    with torch.no_grad():
        model.wide.fill_(hvd.rank())
    found = warnings_of(steps_of(model, wrap_in(members, model)))
    assert [len(it) for it in found] == [0, 1, 0]
    assert found[1][0][0].startswith("Parameter 'wide' differs between ranks 1 and 2: ")
    hvd.remove_process_set(members)


def wrap_in(members, model):
    return hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.5), model.named_parameters(), process_set=members
    )


@on_torch_ranks(SHM3)
def test_ranks_that_have_joined_or_skip_backward_do_not_hinder_it():
    model = Net(1.0 if hvd.rank() < 2 else 2.0)
    optimizer = wrap(model)

    def epoch():
        if hvd.rank() == 1:
            optimizer.step()  # a step without a backward pass
        elif hvd.rank() == 2:
            step(model, optimizer)
        hvd.join()

    found = warnings_of(epoch)
    assert [len(it) for it in found] == [0, 1, 0]
    assert "Parameter 'matrix' differs between ranks 1 and 2" in found[1][0][0]


@contextmanager
def process_group(rank, size):
    port = free_port() if size == 1 else hvd.broadcast_object(free_port(), name="port")
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", timedelta(seconds=60), rank=rank, world_size=size)
    try:
        yield
    finally:
        gc.collect()  # a reducer that outlives its process group may hang in its destructor
        dist.destroy_process_group()


@on_torch_ranks("shm2")
def test_ddp_beside_a_distributed_optimizer_is_told():
    with process_group(hvd.rank(), hvd.size()):
        model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
        hvd.broadcast_parameters([*model.parameters(), *other.parameters()], root_rank=0)
        optimizer = wrap(model)  # wrapped before DDP here, and after DDP in the second iteration
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        for name in ("weight", "module.weight"):
            found = warnings_of(steps_of(ddp, optimizer))
            assert [len(it) for it in found] == [1] * hvd.size()
            assert found[0][0][0].startswith(f"The gradient of '{name}' is reduced twice: by DistributedDataParallel")
            optimizer = wrap(ddp)
        assert not any(warnings_of(steps_of(other, wrap(other))))
        del ddp, optimizer


@on_torch_ranks("shm2")
def test_a_process_group_of_one_is_told_once():
    user_warnings._said.clear()
    with process_group(0, 1):
        model = torch.nn.Linear(2, 1)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        found = warnings_of(steps_of(model, wrap(model)))
        assert all(len(it) == 1 and "a group of 1 process, but this job has 2 ranks" in it[0][0] for it in found)
        hvd.shutdown()
        with warnings.catch_warnings(record=True) as again:
            warnings.simplefilter("always")
            hvd.init()
        assert not again
        user_warnings._said.clear()
        hvd.shutdown()
        with pytest.warns(HorovodWarning, match="trains each rank alone"):
            hvd.init()
