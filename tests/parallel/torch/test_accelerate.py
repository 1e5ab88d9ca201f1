# SPDX-License-Identifier: Apache-2.0
"""Accelerate without arguments and without accelerators: it sees all ranks, or a warning says that it does not."""

import gc
import os
import warnings
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from harness.torch_training import on_torch_ranks

import horovod.torch as hvd
from horovod import accelerate_on_cpu
from horovod.common import user_warnings
from horovod.common.exceptions import HorovodWarning
from horovod.common.torchrun_variables import MARK, NAMES

pytestmark = pytest.mark.timeout(150)
STEPS, ROWS = 3, 4
TRAINS_ALONE = "Accelerate sees 1 process, but this job has 2 ranks: it trains each rank alone."


@contextmanager
def accelerate(**environment):
    """Return the module of Accelerate as if just imported with these variables. Restore all state afterwards."""
    before, said = dict(os.environ), set(user_warnings._said)
    os.environ.update(environment)
    try:
        import accelerate
        from accelerate.state import AcceleratorState

        # The import hook calls this at the first import, but the process of a pool has imported Accelerate already.
        accelerate_on_cpu.tell_accelerate()
        yield accelerate
    finally:
        if dist.is_initialized():
            gc.collect()  # a reducer that outlives its process group may hang in its destructor
            dist.destroy_process_group()
        AcceleratorState._reset_state(reset_partial_state=True)
        user_warnings._said.clear()
        user_warnings._said.update(said)
        os.environ.clear()
        os.environ.update(before)


def data():
    generator = torch.Generator().manual_seed(5)
    rows = STEPS * ROWS * hvd.size()
    return torch.utils.data.TensorDataset(
        torch.randn(rows, 3, generator=generator), torch.randn(rows, 1, generator=generator)
    )


def train(model, optimizer, loader, backward):
    for inputs, targets in loader:
        optimizer.zero_grad()
        backward((model(inputs) - targets).square().mean())
        optimizer.step()


def make():
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    return model, torch.optim.Adam(model.parameters(), 0.1)


def trained_together(accelerator):
    model, optimizer = make()
    loader = torch.utils.data.DataLoader(data(), batch_size=ROWS)
    wrapped, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    train(wrapped, optimizer, loader, accelerator.backward)
    return model.weight


def trained_alone():
    model, optimizer = make()
    train(model, optimizer, torch.utils.data.DataLoader(data(), batch_size=ROWS * hvd.size()), torch.Tensor.backward)
    return model.weight


def place_of(state):
    return state.num_processes, state.process_index, str(state.device.type)


@pytest.mark.checked_numbers("weights that Accelerator() without arguments trains", against="a single process")
@on_torch_ranks("shm2")
def test_accelerator_without_arguments_trains_on_all_ranks():
    with accelerate() as library, warnings.catch_warnings():
        warnings.simplefilter("error", HorovodWarning)
        accelerator = library.Accelerator()
        assert place_of(accelerator) == (2, hvd.rank(), "cpu")
        weight = trained_together(accelerator)
    torch.testing.assert_close(weight, trained_alone())


@on_torch_ranks("shm2")
def test_states_that_are_made_by_themselves_or_before_the_accelerator():
    with accelerate() as library:
        assert place_of(library.PartialState()) == (2, hvd.rank(), "cpu")
        assert place_of(library.Accelerator(cpu=False)) == (2, hvd.rank(), "cpu")
        assert place_of(library.PartialState(cpu=True)) == (2, hvd.rank(), "cpu")


@on_torch_ranks("shm2")
def test_another_world_in_the_same_process():
    for _ in range(2):
        with accelerate() as library:
            assert place_of(library.Accelerator()) == (2, hvd.rank(), "cpu")
        hvd.shutdown()
        hvd.init()


@on_torch_ranks("shm2")
def test_the_variables_are_those_of_hvd_init():
    """Under mpirun a process learns its rank only after it has imported Accelerate."""
    mark = os.environ.pop(MARK)
    with accelerate() as library:
        assert accelerate_on_cpu.VARIABLE not in os.environ
        os.environ[MARK] = mark
        assert place_of(library.Accelerator()) == (2, hvd.rank(), "cpu")
    os.environ[MARK] = mark


@pytest.mark.parametrize(
    "environment", [{"ACCELERATE_USE_CPU": "false"}, {"ACCELERATE_USE_CPU": "0"}, {"TORCHELASTIC_RUN_ID": "torchrun's"}]
)
@on_torch_ranks("shm2")
def test_what_the_user_or_torchrun_has_set_stays_and_a_warning_names_the_cause(environment):
    with accelerate(**environment) as library, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert os.environ.get("ACCELERATE_USE_CPU") == environment.get("ACCELERATE_USE_CPU")
        assert library.Accelerator().num_processes == 1
        library.PartialState()
        accelerate_on_cpu.check_state()
    (warning,) = [it for it in caught if issubclass(it.category, HorovodWarning)]
    assert str(warning.message).startswith(TRAINS_ALONE)
    assert "set ACCELERATE_USE_CPU=true" in str(warning.message)
    assert warning.filename == __file__


@on_torch_ranks("shm2")
def test_hvd_init_tells_of_a_state_that_was_made_before_it():
    """Under mpirun the environment does not contain the other ranks before hvd.init()."""
    with accelerate() as library:
        place = {name: os.environ.pop(name) for name in (*NAMES, MARK, "HOROVOD_SIZE", accelerate_on_cpu.VARIABLE)}
        with warnings.catch_warnings():
            warnings.simplefilter("error", HorovodWarning)
            library.Accelerator()
        os.environ["HOROVOD_SIZE"] = place["HOROVOD_SIZE"]
        hvd.shutdown()
        with pytest.warns(HorovodWarning, match=TRAINS_ALONE):
            hvd.init()
