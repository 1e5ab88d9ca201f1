# SPDX-License-Identifier: Apache-2.0
"""Parameters that differ after hvd.join(): ranks are warned once, with a remedy that works."""

import contextlib
import warnings

import pytest
import torch
from harness.torch_training import on_torch_ranks
from harness.worlds import SHM3

import horovod.torch as hvd
from horovod.common.context import default_context
from horovod.common.exceptions import HorovodWarning
from horovod.common.settings import Settings


@contextlib.contextmanager
def first_join():
    """Set the context to the state of a job that has not called join() yet."""
    before, default_context.joins = default_context.joins, 0
    try:
        yield
    finally:
        default_context.joins = before


def make_plain(buffers=True):
    torch.manual_seed(3)
    layers = [torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)] if buffers else [torch.nn.Linear(3, 4)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def make(op=hvd.Average, buffers=True):
    model, optimizer = make_plain(buffers)
    return model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=op)


def epoch(model, optimizer, batches):
    for batch in range(batches):
        optimizer.zero_grad()
        model(batch_of(hvd.rank(), batch)).square().mean().backward()
        optimizer.step()


def told(action):
    """Run the action. Return the Horovod warnings of every rank."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    mine = [str(it.message) for it in caught if issubclass(it.category, HorovodWarning)]
    return hvd.allgather_object(mine, name="warnings")


def everything(model, optimizer):
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    return [it.tolist() for it in [*model.state_dict().values(), *state]]


def spread(model):
    """Return the largest difference between rank 0's parameters and another rank's."""
    flat = torch.cat([it.detach().flatten() for it in model.parameters()])
    every = hvd.allgather(flat.unsqueeze(0))
    return (every - every[0]).abs().max().item()


@pytest.mark.parametrize("op", ["Average", "Adasum"])
@on_torch_ranks("shm2")
def test_ranks_are_told_once_in_a_job(op):
    with first_join():
        model, optimizer = make(getattr(hvd, op), buffers=False)
        assert told(lambda: epoch(model, optimizer, 3 + hvd.rank()) or hvd.join()) == [[], []]
        assert spread(model) > 0.001
        (warning,), others = told(lambda: epoch(model, optimizer, 3 + hvd.rank()) or hvd.join())
        assert warning.startswith("Parameter '0.weight' differs between ranks 0 and 1 since hvd.join(): ")
        for part in ("last = hvd.join()", "model.state_dict(), root_rank=last", "broadcast_optimizer_state(optimizer"):
            assert part in warning
        assert not others
        assert told(lambda: epoch(model, optimizer, 3 + hvd.rank()) or hvd.join()) == [[], []]


def batch_of(rank, batch):
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(batch + 100 * rank))


def train_both_ranks_in_one_process(epochs):
    """Train rank 0 on three batches and rank 1 on four. Return both models."""
    ranks = [make_plain(buffers=False) for _ in range(2)]
    for batch in [*range(4)] * epochs:
        training = [1] if batch == 3 else [0, 1]  # rank 0 has joined by its fourth batch
        for rank in training:
            ranks[rank][1].zero_grad()
            ranks[rank][0](batch_of(rank, batch)).square().mean().backward()
        for both in zip(*(model.parameters() for model, _ in ranks), strict=True):
            average = sum(both[rank].grad for rank in training) / 2
            for parameter in both:
                parameter.grad = average
        for rank in training:
            ranks[rank][1].step()
    return [model for model, _ in ranks]


@pytest.mark.checked_numbers("weights of two ranks, one with an extra batch before join()", against="a single process")
@on_torch_ranks("shm2")
def test_how_far_one_extra_batch_drives_ranks_apart():
    with first_join():
        model, optimizer = make(buffers=False)
        apart = []

        def train():
            for _ in range(3):
                epoch(model, optimizer, 3 + hvd.rank())
                hvd.join()
                apart.append(spread(model))

        assert [len(each) for each in told(train)] == [1, 0]
        expected = train_both_ranks_in_one_process(3)[hvd.rank()]
        for mine, right in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(mine, right)
        assert apart == pytest.approx([0.051, 0.078, 0.108], abs=0.001)  # these numbers are in docs/pytorch.md


@pytest.mark.checked_numbers("weights, buffers and momentum of all ranks after the remedy", against="each other")
@on_torch_ranks("shm2", SHM3)
def test_the_remedy_leaves_nothing_to_tell():
    with first_join():
        model, optimizer = make()

        def train():
            for number in range(2):
                # Rank 0 joins last in the first epoch, and the last rank in the second.
                epoch(model, optimizer, 3 + (hvd.rank() if number else hvd.size() - hvd.rank()))
                last = hvd.join()
                assert last == (hvd.size() - 1 if number else 0)
                hvd.broadcast_parameters(model.state_dict(), root_rank=last)
                hvd.broadcast_optimizer_state(optimizer, root_rank=last)

        assert not any(told(train))
        return everything(model, optimizer)


@on_torch_ranks(SHM3)
def test_a_rank_that_has_joined_again_stays_silent():
    with first_join():
        model, optimizer = make()
        epoch(model, optimizer, 2 if hvd.rank() == 0 else 3)
        hvd.join()

        def next_epoch():
            if hvd.rank() != 0:  # only rank 0's parameters differ from those of the other ranks
                epoch(model, optimizer, 1)
            hvd.join()

        assert not any(told(next_epoch))


@on_torch_ranks("shm2")
def test_the_setting_turns_it_off_and_equal_steps_tell_nothing():
    with first_join():
        before, default_context._settings = default_context._settings, Settings({"HOROVOD_CHECK_PARAMETERS": False})
        try:
            model, optimizer = make()
        finally:
            default_context._settings = before
        assert not any(told(lambda: epoch(model, optimizer, 3 + hvd.rank()) or hvd.join()))
        assert not any(told(lambda: epoch(model, optimizer, 1)))
    with first_join():
        model, optimizer = make(buffers=False)
        assert not any(told(lambda: epoch(model, optimizer, 3) or hvd.join() or epoch(model, optimizer, 1)))


@on_torch_ranks("shm2")
def test_a_new_world_alone_compares_nothing():
    """An elastic job that continues with other workers starts such a world."""
    with first_join():
        model, optimizer = make()
        epoch(model, optimizer, 1)
        hvd.shutdown()
        hvd.init()
        with torch.no_grad():
            model[0].weight.add_(hvd.rank())
        assert not any(told(lambda: epoch(model, optimizer, 1)))


@on_torch_ranks("shm2")
def test_an_optimizer_that_a_rank_first_uses_after_others():
    """A rank that joins at once took no part in what the other ranks agreed on, so all start again after join()."""
    with first_join():
        models = [make() for _ in range(2)]
        for model, optimizer in models:
            epoch(model, optimizer, 2 * hvd.rank())
        last = hvd.join()
        for model, optimizer in models:
            hvd.broadcast_parameters(model.state_dict(), root_rank=last)
            hvd.broadcast_optimizer_state(optimizer, root_rank=last)
        for model, optimizer in models:
            epoch(model, optimizer, 2)
        return [[it.tolist() for it in model.parameters()] for model, _ in models]


@on_torch_ranks("shm2")
def test_twins_that_ranks_use_in_different_orders_after_a_later_join():
    """Weights may differ after a join, so the ranks continue with a warning."""
    with first_join():
        twins = [make(buffers=False) for _ in range(2)]
        with torch.no_grad():
            twins[1][0][0].weight.add_(1)

        def train(order):
            for model, optimizer in order:
                epoch(model, optimizer, 1)
            hvd.join()

        assert told(lambda: train(twins) or train(twins)) == [[], []]
        warned, silent = told(lambda: train(twins if hvd.rank() == 0 else twins[::-1]))
        assert len(warned) == 2
        assert all("differs between ranks 0 and 1 since hvd.join()" in text for text in warned)
        assert all(text.count("SGD made at") == 2 for text in warned)
        assert not silent
