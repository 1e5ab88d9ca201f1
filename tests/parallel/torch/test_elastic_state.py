# SPDX-License-Identifier: Apache-2.0
"""TorchState and hvd.elastic.run on live ranks. The tests of the elastic driver cover workers that really die."""

import pytest
import torch
from harness.torch_training import on_torch_ranks

import horovod.torch as hvd
from horovod.common import elastic as common_elastic
from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError
from horovod.common.sync_decision import decide_sync
from horovod.torch import elastic
from horovod.torch.elastic import ElasticSampler, TorchState

TWO_AND_FOUR = ("shm2", "shm4")


class Counting(torch.nn.Linear):
    """Module with state that is not a tensor."""

    seen = 0

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]


def make_state(seed, **values):
    torch.manual_seed(seed)
    model = Counting(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    return TorchState(model, optimizer, scheduler=scheduler, sampler=ElasticSampler(range(24), seed=1), **values)


def step(state):
    state.optimizer.zero_grad()
    generator = torch.Generator().manual_seed(state.batch)
    state.model(torch.randn(4, 3, generator=generator)).square().sum().backward()
    state.optimizer.step()
    state.model.seen += 1
    state.sampler.record_batch(state.batch, 2)
    state.batch += 1


def contents(state):
    moments = [value.tolist() for entry in state.optimizer.state.values() for value in entry.values()]
    weights = [parameter.tolist() for parameter in state.model.parameters()]
    progress = (state.sampler.state_dict(), state.model.seen, state.scheduler.last_epoch, state.batch)
    return weights, moments, state.optimizer.param_groups[0]["lr"], progress


@on_torch_ranks(*TWO_AND_FOUR)
def test_sync_makes_all_like_rank_0():
    state = make_state(hvd.rank(), batch=0)
    if hvd.rank() == 0:  # rank 0 has trained, the other ranks are new workers
        step(state)
        step(state)
        state.scheduler.step()
        state.save()
    state.sync()
    assert state.model.seen == 2
    assert state.sampler.processed_num == 4 * hvd.size()
    assert state.batch == 2
    after_sync = contents(state)
    step(state)
    state.restore()
    assert contents(state) == after_sync  # sync() saves the state
    step(state)
    indices = hvd.allgather_object(state.sampler.indices)
    assert sorted(index for share in indices for index in share) == sorted(state.sampler.remaining_indices)
    return contents(state)


@pytest.mark.checked_numbers("an elastic training that begins with a fresh optimizer", against="a single process")
@on_torch_ranks("shm2")
def test_sync_of_an_optimizer_that_has_not_stepped():
    """No rank gets optimizer state. A worker drops state of steps that were never committed."""

    def make(weight):
        return torch.optim.SGD([weight], 1.0, momentum=0.9, dampening=0.9)

    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = hvd.DistributedOptimizer(make(weight), [("weight", weight)])
    if hvd.rank() == 1:
        optimizer.state[weight]["momentum_buffer"] = torch.tensor(5.0)
    state = TorchState(None, optimizer)
    state.sync()
    assert not optimizer.state
    for expected in (-1.0, -2.0):
        weight.grad = None
        weight.backward()
        state.optimizer.step()
        assert weight.item() == pytest.approx(expected)
    state.restore()
    assert not optimizer.state
    # A replacement joins after steps were committed: it takes the state of rank 0 without making a step.
    weight.grad = None
    weight.backward()
    optimizer.step()
    if hvd.rank() == 1:
        optimizer.state.clear()
    value = weight.item()
    state.sync()
    assert optimizer.state[weight]["momentum_buffer"].item() == pytest.approx(1.0)
    assert weight.item() == value


@on_torch_ranks(*TWO_AND_FOUR)
def test_training_goes_on_from_the_last_commit():
    """The simulated failures hit all ranks at once; the ranks then start a new world."""
    troubles = [HorovodInternalError("played"), common_elastic.HostUpdateResult.added, None]
    resets = []

    @elastic.run
    def train(state, until):
        while state.batch < until:
            step(state)
            hvd.allreduce(torch.ones(1), name="work")
            if state.batch % 2 == 0:
                state.commit()
            if state.batch == 3 and troubles[0] and len(troubles) == 3:
                raise troubles.pop(0)
            if state.batch == 5 and len(troubles) == 2:
                update = troubles.pop(0)
                if hvd.rank() == 0:  # the driver notifies rank 0 only
                    common_elastic.notification_manager.handle_hosts_updated(1, update)
        return contents(state)

    state = make_state(hvd.rank(), batch=0)
    state.register_reset_callbacks([lambda: resets.append(state.batch)])
    result = train(state, 8)
    # The failure after batch 3 goes back to the commit after batch 2; the update interrupts the commit after batch 6.
    assert resets == [2, 6]

    expected = make_state(0, batch=0)
    while expected.batch < 8:
        step(expected)
    for got, wanted in zip(result[:2], contents(expected)[:2], strict=True):
        for mine, reference in zip(got, wanted, strict=True):
            torch.testing.assert_close(torch.tensor(mine), torch.tensor(reference), rtol=0, atol=0)
    assert result[2:] == contents(expected)[2:]
    return result


@on_torch_ranks(*TWO_AND_FOUR)
def test_a_new_worker_is_synchronised_though_the_old_ones_could_do_without():
    """After a removal survivors may skip the sync, but a replacement in that round must get it and not wait in vain."""
    state = make_state(hvd.rank(), batch=hvd.rank())
    interrupts = [common_elastic.HostsUpdatedInterrupt(skip_sync=True)] if hvd.rank() == 0 else []

    def train(state):
        if interrupts:
            raise interrupts.pop()
        return contents(state)

    if hvd.rank() == 0:  # rank 0 is a survivor: it decided without the other ranks
        common_elastic._agree, real = agree_alone, common_elastic._agree
        state.sync = lambda: None
    else:
        real = common_elastic._agree

    def reset():
        common_elastic._agree = real
        del state.sync

    try:
        return common_elastic.run_fn(train, reset)(state)
    finally:
        common_elastic._agree = real


def agree_alone(state, needs_sync):
    """Decide as the only rank of a world."""
    return decide_sync([common_elastic._report(state, needs_sync)])


@on_torch_ranks("shm2")
def test_ranks_that_disagree_are_not_lost_workers():
    calls = []

    @elastic.run
    def train(state):
        calls.append(1)
        hvd.allreduce(torch.ones(1 + hvd.rank()), name="wrong")

    with pytest.raises(HorovodMismatchError):
        train(make_state(0, batch=0))
    assert len(calls) == 1
