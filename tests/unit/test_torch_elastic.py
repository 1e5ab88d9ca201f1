# SPDX-License-Identifier: Apache-2.0
"""ElasticSampler and TorchState in one process: order, shares, saved and restored values."""

import gc
import random
import weakref
from contextlib import suppress

import pytest

torch = pytest.importorskip("torch")

from horovod.common.exceptions import HorovodInternalError  # noqa: E402 - torch may be missing
from horovod.torch import elastic  # noqa: E402
from horovod.torch.elastic import sampler as sampler_module  # noqa: E402
from horovod.torch.elastic import state as state_module  # noqa: E402
from horovod.torch.elastic.sampler import ElasticSampler  # noqa: E402
from horovod.torch.elastic.state import TorchState  # noqa: E402
from horovod.torch.gradients.flights import Flights  # noqa: E402
from horovod.torch.gradients.writes import Writes  # noqa: E402


@pytest.fixture
def world(monkeypatch):
    """Return a function that sets the rank and size that samplers see."""

    def be(rank, size):
        monkeypatch.setattr(sampler_module, "rank", lambda: rank)
        monkeypatch.setattr(sampler_module, "size", lambda: size)

    be(0, 1)
    return be


def shares(world, size, state=None, **options):
    """Return the indices that each rank of a world would get."""
    result = []
    for rank in range(size):
        world(rank, size)
        sampler = ElasticSampler(range(10), **options)
        if state:
            sampler.load_state_dict(state)
        assert len(sampler) == len(list(sampler))
        result.append(list(sampler))
    return result


def shuffled(seed, count=10):
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def test_every_sample_once_in_a_shuffled_order(world):
    order = shuffled(7)
    assert shares(world, 2, seed=7) == [order[0::2], order[1::2]]
    assert shares(world, 2, shuffle=False) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


def test_uneven_shares_are_filled_by_repetition(world):
    assert shares(world, 4, shuffle=False) == [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]


def test_the_epoch_changes_the_order_and_forgets_progress(world):
    sampler = ElasticSampler(range(10), seed=3)
    sampler.record_batch(0, 4)
    sampler.set_epoch(2)
    assert list(sampler) == shuffled(5)
    assert sampler.state_dict() == {"epoch": 2, "processed_num": 0}


def test_after_a_reset_only_the_rest_is_shared_out(world):
    world(1, 2)
    sampler = ElasticSampler(range(10), seed=3)
    before = list(sampler)
    sampler.record_batch(0, 2)
    assert list(sampler) == before  # unchanged until the reset
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 4}
    rest = shuffled(3)[4:]
    assert shares(world, 3, sampler.state_dict(), seed=3) == [rest[0::3], rest[1::3], rest[2::3]]
    world(0, 1)
    sampler.reset()
    assert list(sampler) == rest


@pytest.mark.parametrize("processed", [10, 12])
def test_nothing_is_left(world, processed):
    assert shares(world, 3, {"epoch": 0, "processed_num": processed}) == [[], [], []]


def test_few_samples_and_many_ranks(world):
    assert shares(world, 4, {"epoch": 0, "processed_num": 9}, shuffle=False) == [[9], [9], [9], [9]]


def test_it_works_in_a_data_loader(world):
    loader = torch.utils.data.DataLoader(list(range(10)), batch_size=4, sampler=ElasticSampler(range(10), False))
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def snapshot(state):
    return [value.clone() for value in state.model.state_dict().values()], [
        value.clone() for entry in state.optimizer.state.values() for value in entry.values()
    ]


def make_state(**values):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    return TorchState(model=model, optimizer=torch.optim.Adam(model.parameters()), **values)


def test_restore_goes_back_to_the_last_save_any_number_of_times(world):
    scheduled = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    state = make_state(
        sampler=ElasticSampler(range(10)),
        scheduler=torch.optim.lr_scheduler.StepLR(scheduled, 1),
        epoch=3,
        losses=[1.0],
    )
    step(state.model, state.optimizer)
    state.sampler.record_batch(0, 4)
    state.save()
    saved = snapshot(state)
    for _ in range(2):  # the second pass would fail if the first restore had handed out the saved copy itself
        step(state.model, state.optimizer)
        scheduled.step()
        state.scheduler.step()
        state.sampler.record_batch(1, 4)
        state.epoch = 4
        state.losses.append(2.0)
        state.restore()
        for restored, expected in zip(snapshot(state), saved, strict=True):
            torch.testing.assert_close(restored, expected, rtol=0, atol=0)
        assert (state.epoch, state.losses) == (3, [1.0])
        assert state.sampler.state_dict() == {"epoch": 0, "processed_num": 4}
        assert len(state.sampler) == 6
        assert state.scheduler.last_epoch == 0


def test_before_the_first_step_there_is_no_optimizer_state(world):
    state = make_state()
    step(state.model, state.optimizer)
    state.restore()
    assert not state.optimizer.state


def test_assigning_saves(world):
    state = make_state(epoch=0)
    other = torch.nn.Linear(2, 2)
    weight = other.weight.detach().clone()
    state.model = other
    torch.nn.init.zeros_(other.weight)
    state.epoch = 5  # assigning a plain value does not save it
    state.restore()
    assert state.model is other
    torch.testing.assert_close(other.weight.detach(), weight)
    assert state.epoch == 0


def test_reset_shares_out_anew_without_a_sync(world):
    state = TorchState(sampler=ElasticSampler(range(10), shuffle=False))
    assert state.model is None
    world(1, 2)
    state.on_reset()
    assert list(state.sampler) == [1, 3, 5, 7, 9]


def test_users_bring_their_own_handlers(world):
    class Counter:
        count = 0

    class CounterHandler(state_module.StateHandler):
        saved = 0

        def save(self):
            self.saved = self.value.count

        def restore(self):
            self.value.count = self.saved

    registry = state_module.get_handler_registry()
    state_module.set_handler_registry([(Counter, CounterHandler), *registry])
    try:
        counter = Counter()
        state = TorchState(counter=counter)
        counter.count = 1
        state.save()
        counter.count = 2
        state.restore()
        assert state.counter is counter
        assert counter.count == 1
    finally:
        state_module.set_handler_registry(registry)


def test_public_names():
    assert sorted(elastic.__all__) == ["ElasticSampler", "TorchState", "run"]
    for name in ("init", "shutdown", "run_fn"):
        assert callable(getattr(elastic, name))


def tensors_in(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [tensor for child in children for tensor in tensors_in(child)]


def test_commits_reuse_two_slots(world):
    """Check that the third commit of a state has the memory addresses of the first."""
    state = make_state(history=torch.zeros(3))
    seen = []
    for _ in range(6):
        step(state.model, state.optimizer)
        state.history = state.history + 1
        state.save()
        content = state.pin_commit()
        state.release_commit()
        seen.append([tensor.data_ptr() for tensor in tensors_in(content)])
    assert len(seen[0]) == 2 + 6 + 1
    assert seen[0] == seen[2] == seen[4]
    assert seen[1] == seen[3] == seen[5]
    assert not set(seen[0]) & set(seen[1])


def test_commits_of_a_gpu_may_be_kept_in_host_memory(world, monkeypatch):
    """Treat large CPU tensors like GPU tensors: two pinned slots hold them, and small tensors are not moved."""
    pinned = []

    def pinned_like(value):
        pinned.append(torch.empty_like(value))
        return pinned[-1]

    large = 2048
    monkeypatch.setattr(state_module, "_belongs_on_host", lambda value: value.numel() >= large)
    monkeypatch.setattr(state_module, "_pinned_like", pinned_like)
    awaited: list[int] = []  # devices that the state synchronised with
    monkeypatch.setattr(torch.cuda, "synchronize", awaited.append)
    model = torch.nn.Linear(large, 1)
    optimizer = torch.optim.Adam(model.parameters())
    state = TorchState(model, optimizer, history=torch.zeros(large))
    for _ in range(4):
        model(torch.ones(2, large)).sum().backward()
        optimizer.step()
        awaited.clear()
        state.save()
        assert set(awaited) == {model.weight.get_device()}
    assert len(pinned) == 6  # the weight and its two moments, in two slots
    kept = {tensor.data_ptr() for tensor in pinned}
    content = state.pin_commit()
    state.release_commit()
    weight, bias = content["objects"]["model"].values()
    assert weight.data_ptr() in kept
    assert bias.data_ptr() not in kept
    assert not kept & {tensor.data_ptr() for tensor in tensors_in(content["values"])}
    saved = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.zero_()
    state.restore()
    torch.testing.assert_close(model.weight.detach(), saved, rtol=0, atol=0)


def test_a_commit_that_ends_in_the_middle_is_none(world, monkeypatch):
    state = make_state(epoch=1)
    step(state.model, state.optimizer)
    state.save()
    saved = snapshot(state)
    step(state.model, state.optimizer)
    state.epoch = 2

    def killed():
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(state.optimizer, "state_dict", killed)  # the model has been copied before
        with pytest.raises(KeyboardInterrupt):
            state.save()
    state.restore()
    for restored, expected in zip(snapshot(state), saved, strict=True):
        torch.testing.assert_close(restored, expected, rtol=0, atol=0)
    assert state.epoch == 1


def test_a_checkpoint_holds_all_and_fits_only_its_own(world):
    state = make_state(sampler=ElasticSampler(range(10)), epoch=4)
    step(state.model, state.optimizer)
    state.sampler.record_batch(0, 3)
    state.save()
    content = state.pin_commit()
    other = make_state(sampler=ElasticSampler(range(10)), epoch=0)
    other.load_commit(content)
    for loaded, expected in zip(snapshot(other), snapshot(state), strict=True):
        torch.testing.assert_close(loaded, expected, rtol=0, atol=0)
    assert (other.epoch, other.sampler.processed_num) == (4, 3)
    step(other.model, other.optimizer)
    other.restore()
    torch.testing.assert_close(snapshot(other), snapshot(state), rtol=0, atol=0)
    bigger = torch.nn.Linear(3, 2)
    state = TorchState(bigger, torch.optim.Adam(bigger.parameters()), sampler=ElasticSampler(range(10)), epoch=0)
    with pytest.raises(ValueError, match="(?s)does not fit the state's 'model': .*size mismatch"):
        state.load_commit(content)


def test_a_lost_world_is_not_kept_by_the_traceback_of_its_loss():
    class Memory:
        """Stand-in for memory of a world that has ended."""

    memory = Memory()
    held = weakref.ref(memory)

    def fail(memory=memory):
        raise HorovodInternalError("rank 1 is lost")

    flights = Flights.__new__(Flights)
    flights._finishers, flights._writes = [fail], Writes()
    del memory, fail
    gc.disable()
    try:
        with suppress(HorovodInternalError):
            flights.wait()
        assert held() is None
    finally:
        gc.enable()


def test_a_sync_that_fails_halfway_leaves_the_whole_commit(monkeypatch):
    """The model of one commit with the optimizer of another would be a state that no rank ever had."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = TorchState(model, optimizer, step=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def of_rank_0(parameters, root_rank):
        for value in parameters.values():
            value.fill_(9.0)

    def lost(*_):
        raise HorovodInternalError("rank 0 is lost")

    monkeypatch.setattr(state_module, "broadcast_parameters", of_rank_0)
    for broken in ("broadcast_optimizer_state", "_bcast_object"):
        with monkeypatch.context() as patch:
            patch.setattr(state_module, "broadcast_optimizer_state", lambda *_, **__: None)
            patch.setattr(state if broken == "_bcast_object" else state_module, broken, lambda *_, **__: lost())
            with pytest.raises(HorovodInternalError):
                state.sync()
        state.restore()
        torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
