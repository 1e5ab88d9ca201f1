# SPDX-License-Identifier: Apache-2.0
"""Several optimizers whose parameters have equal names: each trains as one process would on the whole batch."""

import contextlib
import gc
import re
import warnings
from unittest import mock

import pytest
import torch
from harness.torch_training import on_torch_ranks
from harness.worlds import SHM3

import horovod.torch as hvd
from horovod.common.context import default_context
from horovod.common.settings import Settings
from horovod.torch.gradients import round_messages
from horovod.torch.gradients.flights import Flights

ROWS = 2  # rows of each rank
STEPS = 3
# Shapes of layers whose parameters are called `weight` and `bias`.
EQUAL, DIFFERENT = [(4, 3), (4, 3), (4, 3)], [(4, 3), (4, 5), (4, 1)]


def make_models(shapes):
    torch.manual_seed(5)
    return [torch.nn.Linear(*shape) for shape in shapes]


def rows_of(step, ranks):
    """Return the rows of these ranks, so that one process can train on the rows of all ranks."""
    generator = torch.Generator().manual_seed(step)
    whole = torch.randn(ROWS * hvd.size(), 4, generator=generator)
    return torch.cat([whole[ROWS * rank : ROWS * (rank + 1)] for rank in ranks])


def loss_of(model, inputs):
    return model(inputs).square().mean()


def train_alone(models, ranks):
    """Train the models in this process alone on the rows of these ranks."""
    optimizer = torch.optim.SGD([it for model in models for it in model.parameters()], 0.1, momentum=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        sum(loss_of(model, rows_of(step, ranks)) for model in models).backward()
        optimizer.step()
    return models


def wrap(model, wait=True, **options):
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
    if optimizer._reducer is not None:
        optimizer._reducer._wait_in_backward = wait
    return optimizer


def step_once(models, optimizers, step, several=False):
    for optimizer in optimizers:
        optimizer.zero_grad()
    inputs = rows_of(step, [hvd.rank()])
    losses = [loss_of(model, inputs) for model in models]
    if several:
        for loss in losses:
            loss.backward()
    else:
        sum(losses).backward()
    for optimizer in optimizers:
        optimizer.step()


def check_equal(models, expected):
    for model, reference in zip(models, expected, strict=True):
        for mine, right in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(mine, right, rtol=0, atol=1e-6)


def names(optimizer):
    return [gradient.full_name for gradient in optimizer._reducer._gradients]


@contextlib.contextmanager
def settings(values):
    before, default_context._settings = default_context._settings, Settings(values)
    try:
        yield
    finally:
        default_context._settings = before


LINE = r"SGD made at (?:\S*/)?test_several_optimizers\.py:\d+"
SWAPPED = rf"Parameter 'weight' differs between ranks.*: {LINE} and {LINE} have parameters of the same names.*\(1 more"

WAYS = {
    "one backward()": {},
    "a backward() for each": {"several": True},
    "waiting in step()": {"wait": False},
    "groups": {"groups": 1},
    "groups, waiting in step()": {"groups": 1, "wait": False},
    "shared memory": {"gradient_as_bucket_view": True},
    "fp16": {"compression": hvd.Compression.fp16},
}


@pytest.mark.checked_numbers(
    "weights after training two or three models with an optimizer each", against="a single process"
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shapes", [EQUAL, DIFFERENT, EQUAL[:2], DIFFERENT[:2]], ids=str)
@on_torch_ranks("shm2")
def test_models_that_are_trained_together(shapes, way):
    options = dict(WAYS[way])
    several = options.pop("several", False)
    ranks = range(hvd.size())
    models = make_models(shapes)
    junk = [bytearray(1000 + number) for number in range(100 * hvd.rank())]  # so that addresses differ between ranks
    optimizers = [wrap(model, **options) for model in models]
    for step in range(STEPS):
        step_once(models, optimizers, step, several)
    del junk
    expected = train_alone(make_models(shapes), ranks)
    check_equal(models, expected)
    told = [names(optimizer) for optimizer in optimizers]
    assert len({name for each in told for name in each}) == 2 * len(models)
    return told, [it.tolist() for model in models for it in model.parameters()]


@pytest.mark.checked_numbers("weights after training two models with an optimizer each", against="a single process")
@on_torch_ranks("tcp2", "shm4")
def test_models_that_are_trained_together_on_other_routes():
    for shapes in (EQUAL, DIFFERENT):
        models = make_models(shapes)
        optimizers = [wrap(model) for model in models]
        for step in range(STEPS):
            step_once(models, optimizers, step)
        check_equal(models, train_alone(make_models(shapes), range(hvd.size())))


@pytest.mark.checked_numbers("weights where ranks make optimizers in different orders", against="a single process")
@on_torch_ranks("shm2")
def test_optimizers_that_ranks_make_in_different_orders():
    models = make_models(DIFFERENT)
    # The names of this optimizer collide with those of the others, but it is never used.
    unused = wrap(make_models(EQUAL)[0]) if hvd.rank() == 0 else None
    order = [0, 1, 2] if hvd.rank() == 0 else [2, 0, 1]
    made = {number: wrap(models[number]) for number in order}
    optimizers = [made[number] for number in range(3)]
    for step in range(STEPS):
        step_once(models, optimizers, step)
    check_equal(models, train_alone(make_models(DIFFERENT), range(2)))
    assert unused is None or unused._reducer is not None
    return [names(optimizer) for optimizer in optimizers]


@pytest.mark.checked_numbers("weights where one rank alone has made another optimizer", against="a single process")
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("shape", [EQUAL[0], DIFFERENT[1]], ids=str)
@on_torch_ranks("shm2")
def test_names_that_collide_on_one_rank_only(shape, wait):
    """Rank 1 reports the collision, and all ranks append the suffix."""
    unused = wrap(torch.nn.Linear(*shape)) if hvd.rank() == 1 else None
    models = make_models(EQUAL[:1])
    optimizer = wrap(models[0], wait=wait)
    for step in range(STEPS):
        step_once(models, [optimizer], step)
    check_equal(models, train_alone(make_models(EQUAL[:1]), range(2)))
    assert unused is None or unused._reducer is not None
    assert re.fullmatch(r"allreduce\.weight\.[0-9a-f]{8}\.\d+", names(optimizer)[0])
    return names(optimizer)


@pytest.mark.checked_numbers("weights where a rank leaves out one of two models", against="a single process")
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("shapes", [EQUAL[:2], DIFFERENT[:2]], ids=str)
@on_torch_ranks("shm2")
def test_a_model_that_one_rank_leaves_out(shapes, wait):
    """Rank 0 trains both models. Rank 1 contributes zeros for the model that it leaves out, and calls step()."""
    models, expected = make_models(shapes), make_models(shapes)
    optimizers = [wrap(model, wait=wait) for model in models]
    plain = torch.optim.SGD([it for model in expected for it in model.parameters()], 0.1, momentum=0.5)
    for step in range(STEPS):
        # The first use distinguishes models of equal shapes, so no rank leaves one out in the first step.
        left_out = step % 2 if step or shapes is DIFFERENT[:2] else None
        for optimizer in (*optimizers, plain):
            optimizer.zero_grad()
        mine = [loss_of(models[number], rows_of(step, [hvd.rank()])) for number in range(2)]
        sum(loss for number, loss in enumerate(mine) if hvd.rank() == 0 or number != left_out).backward()
        for optimizer in optimizers:
            optimizer.step()
        both = [loss_of(model, rows_of(step, [0, 1])) for model in expected]
        if left_out is not None:
            both[left_out] = loss_of(expected[left_out], rows_of(step, [0])) / 2
        sum(both).backward()
        plain.step()
    check_equal(models, expected)


@pytest.mark.checked_numbers(
    "weights of models that are reduced in overlapping process sets", against="a single process"
)
@on_torch_ranks(SHM3)
def test_process_sets_that_overlap():
    sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([1, 2])]
    try:
        models = make_models(EQUAL)
        expected = make_models(EQUAL)
        optimizers = [wrap(models[number], process_set=sets[number]) for number in range(2)]
        optimizers.append(wrap(models[2], process_set=sets[1]))
        for step in range(STEPS):
            step_once(models, optimizers, step)
        rank = hvd.rank()
        trained_by = [[0, 1] if rank < 2 else [2], [1, 2] if rank else [0], [1, 2] if rank else [0]]
        for number, ranks in enumerate(trained_by):
            alone = torch.optim.SGD(expected[number].parameters(), 0.1, momentum=0.5)
            for step in range(STEPS):
                alone.zero_grad()
                loss_of(expected[number], rows_of(step, ranks)).backward()
                alone.step()
        check_equal(models, expected)
        if rank:
            assert len(set(names(optimizers[1]) + names(optimizers[2]))) == 4
        if rank < 2:
            assert names(optimizers[0]) == ["allreduce.weight", "allreduce.bias"]  # the only one in its process set
    finally:
        for process_set in sets:
            hvd.remove_process_set(process_set)


@pytest.mark.checked_numbers("weights where gradients add up over two passes", against="a single process")
@pytest.mark.parametrize("wait", [True, False])
@on_torch_ranks("shm2")
def test_gradients_that_add_up_over_several_passes(wait):
    models, expected = make_models(EQUAL[:2]), make_models(EQUAL[:2])
    optimizers = [wrap(models[0], wait=wait, backward_passes_per_step=2), wrap(models[1], wait=wait)]
    plain = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.5) for model in expected]
    for window in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for step in (2 * window, 2 * window + 1):
            used = slice(2 if step % 2 else 1)  # the second model takes part in every second pass
            sum(loss_of(model, rows_of(step, [hvd.rank()])) for model in models[used]).backward()
            sum(loss_of(model, rows_of(step, [0, 1])) for model in expected[used]).backward()
        for optimizer in (*optimizers, *plain):
            optimizer.step()
        for optimizer in plain:
            optimizer.zero_grad()
    check_equal(models, expected)


@pytest.mark.checked_numbers("rows of two sparse embeddings of the same name", against="a single process")
@pytest.mark.parametrize("as_dense", [True, False])
@on_torch_ranks("shm2")
def test_sparse_gradients(as_dense):
    tables = [torch.nn.Embedding(6, 2, sparse=True) for _ in range(2)]
    for number, table in enumerate(tables):
        torch.nn.init.constant_(table.weight, float(number))
    hvd.broadcast_parameters([table.weight for table in tables], root_rank=0)
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), 1.0), table.named_parameters(), op=hvd.Sum, sparse_as_dense=as_dense
        )
        for table in tables
    ]
    for _ in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        (
            tables[0](torch.tensor([hvd.rank(), 4])).sum() + 2 * tables[1](torch.tensor([hvd.rank() + 1, 5])).sum()
        ).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert tables[0].weight[:, 0].tolist() == [-3.0, -3.0, 0.0, 0.0, -6.0, 0.0]
    assert tables[1].weight[:, 0].tolist() == [1.0, -5.0, -5.0, 1.0, 1.0, -11.0]


@pytest.mark.checked_numbers(
    "weights after ranks met again, one of them with new optimizers", against="a single process"
)
@on_torch_ranks("shm2")
def test_a_replacement_that_counts_its_optimizers_from_the_start():
    models = make_models(EQUAL[:2])
    for _ in range(2):  # so that the survivor has used more optimizers than the replacement
        earlier = [wrap(model) for model in make_models(EQUAL[:2])]
    optimizers = [wrap(model) for model in models]
    del earlier
    step_once(models, optimizers, 0)
    hvd.shutdown()
    hvd.init()
    if hvd.rank() == 1:
        state = [optimizer.state_dict() for optimizer in optimizers]
        optimizers = [wrap(model) for model in models]
        for optimizer, saved in zip(optimizers, state, strict=True):
            optimizer.load_state_dict(saved)
    for step in (1, 2):
        step_once(models, optimizers, step)
    check_equal(models, train_alone(make_models(EQUAL[:2]), range(2)))
    return [names(optimizer) for optimizer in optimizers]


@on_torch_ranks("shm2")
def test_twins_that_ranks_use_in_different_orders_are_an_error_on_all():
    models = make_models(EQUAL[:2])
    order = [0, 1] if hvd.rank() == 0 else [1, 0]
    made = {number: wrap(models[number]) for number in order}
    for _ in range(2):  # twice, because a program that goes on must get the error again
        with pytest.raises(hvd.HorovodMismatchError, match=SWAPPED):
            step_once(models, [made[0], made[1]], 0)


@on_torch_ranks("shm2")
def test_twins_that_ranks_use_in_different_orders_after_they_met_again_are_an_error_on_all():
    """The new world numbers its optimizers from the start, so models of equal shapes are compared again."""
    models = make_models(EQUAL[:2])
    optimizers = [wrap(model) for model in models]
    step_once(models, optimizers, 0)
    hvd.shutdown()
    hvd.init()
    before = [it.tolist() for model in models for it in model.parameters()]
    if hvd.rank() == 0:
        with pytest.raises(hvd.HorovodMismatchError, match=SWAPPED):
            step_once(models, optimizers, 1)
    else:  # rank 1 leaves the first model out, and calls its optimizer's step() later
        with pytest.raises(hvd.HorovodMismatchError, match=SWAPPED):
            loss_of(models[1], rows_of(1, [1])).backward()
        with pytest.raises(hvd.HorovodMismatchError, match=SWAPPED):
            optimizers[0].step()
    assert [it.tolist() for model in models for it in model.parameters()] == before


@on_torch_ranks("shm2")
def test_twins_are_not_compared_where_the_user_turned_that_off():
    models = make_models(EQUAL[:2])
    with settings({"HOROVOD_CHECK_PARAMETERS": False}):
        made = {number: wrap(models[number]) for number in ([0, 1] if hvd.rank() == 0 else [1, 0])}
    step_once(models, [made[0], made[1]], 0)


@on_torch_ranks("shm2")
def test_models_that_share_names_and_do_not_begin_alike():
    """Optimizers of different shapes cannot be confused, so ranks only warn and name both optimizers."""
    torch.manual_seed(hvd.rank())
    models = [torch.nn.Linear(*shape) for shape in DIFFERENT[:2]]
    optimizers = [wrap(model) for model in models]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step_once(models, optimizers, 0)
    told = hvd.allgather_object([str(it.message) for it in caught], name="warnings")
    assert [len(each) for each in told] == [2, 0]
    assert all("'weight' differs between ranks 0 and 1: call hvd.broadcast" in text for text in told[0])
    assert all(text.count("SGD made at") == 2 for text in told[0])


@on_torch_ranks("shm2")
def test_names_are_those_of_the_parameters_unless_they_collide():
    first, second = make_models(EQUAL[:2])
    optimizer = wrap(first)
    assert not optimizer._reducer._sends_early  # ranks have not agreed on the names yet
    step_once([first], [optimizer], 0)
    plain = ["allreduce.weight", "allreduce.bias"]
    assert names(optimizer) == plain
    assert optimizer._reducer._sends_early
    assert optimizer._reducer._known.exchange_name() == "DistributedOptimizer.weight"
    later = wrap(second)  # its names collide with those of an optimizer in use
    step_once([first, second], [optimizer, later], 1)
    assert names(optimizer) == plain
    suffix = names(later)[0].removeprefix(plain[0])
    assert re.fullmatch(r"\.[0-9a-f]{8}\.\d+", suffix)
    assert names(later) == [name + suffix for name in plain]
    later.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    step_once([first, second], [optimizer, later], 2)
    assert names(optimizer)[:2] == plain
    assert len({names(optimizer)[2], names(later)[2]}) == 2
    return names(optimizer), names(later)


@contextlib.contextmanager
def recorded():
    """Record the exchanges of optimizers by name, and the gradients that are sent before the exchange."""
    events = []
    begin_exchange, start = round_messages.Exchange, Flights.start

    def record_exchange(member, name, message):
        events.append(name)
        return begin_exchange(member, name, message)

    def record_start(self, numbers, will_wait, *rest):
        if numbers and not will_wait:
            events.append(f"early: {self._gradients[numbers[0]].full_name}")
        start(self, numbers, will_wait, *rest)

    with (
        mock.patch.object(round_messages, "Exchange", record_exchange),
        mock.patch.object(Flights, "start", record_start),
    ):
        yield events


@pytest.mark.parametrize("parts", [["encoder"], ["encoder", "decoder"]], ids=str)
@on_torch_ranks("shm2")
def test_messages_and_early_sending_from_the_second_step_on(parts):
    """Each optimizer exchanges one message per step, and sends gradients of 512 KB or more before that message."""
    layers = [torch.nn.Linear(4, 200_000) for _ in parts]
    hvd.broadcast_parameters([it for layer in layers for it in layer.parameters()], root_rank=0)
    with settings({"HOROVOD_TORCH_OVERLAP": True}):
        optimizers = [
            hvd.DistributedOptimizer(
                torch.optim.SGD(layer.parameters(), 0.1),
                [(f"{part}.{name}", it) for name, it in layer.named_parameters()],
            )
            for part, layer in zip(parts, layers, strict=True)
        ]
    steps = []
    for step in range(3):
        with recorded() as events:
            step_once(layers, optimizers, step)
        steps.append(sorted(events))
    digest = r" \(2 parameters, [0-9a-f]{8}\.\d+\)"
    assert len(steps[0]) == len(parts)
    for part, event in zip(sorted(parts), steps[0], strict=True):
        assert re.fullmatch(rf"DistributedOptimizer\.{part}\.weight{digest}", event)
    exchanges = {f"DistributedOptimizer.{part}.weight" for part in parts}
    for events in steps[1:]:
        assert [event for event in events if not event.startswith("early")] == sorted(exchanges)
        assert {event for event in events if event.startswith("early")} >= {
            f"early: allreduce.{part}.weight" for part in parts
        }


@pytest.mark.checked_numbers("weights of a parameter that two optimizers have", against="a single process")
@pytest.mark.parametrize("wait", [True, False])
@on_torch_ranks("shm2")
def test_a_parameter_of_two_optimizers_is_reduced_by_one_after_the_other(wait):
    (model,), (expected,) = make_models(EQUAL[:1]), make_models(EQUAL[:1])
    both = [wrap(model, wait=wait), wrap(model, wait=wait)]
    plain = torch.optim.SGD(expected.parameters(), 0.1, momentum=0.5)
    for step in range(STEPS):
        both[0].zero_grad()
        both[1].zero_grad()
        model(rows_of(step, [hvd.rank()])).square().mean().backward()
        both[1].synchronize()
        both[0].step()
        plain.zero_grad()
        expected(rows_of(step, range(2))).square().mean().backward()
        plain.step()
        with both[1].skip_synchronize():
            both[1]._reducer.stepped(True)
    check_equal([model], [expected])


@on_torch_ranks("shm2")
def test_an_adasum_optimizer_that_is_gone_no_longer_holds_back_others():
    (model,) = make_models(EQUAL[:1])
    optimizer = wrap(model)
    step_once([model], [optimizer], 0)
    other = wrap_adasum(model)
    assert not optimizer._reducer._sends_early
    del other
    gc.collect()
    assert optimizer._reducer._sends_early


@pytest.mark.checked_numbers(
    "weights where two optimizers combine steps by Adasum", against="each optimizer on its own"
)
@on_torch_ranks("shm2")
def test_adasum_steps_of_two_optimizers():
    def train(together):
        models = make_models(EQUAL[:2])
        optimizers = [wrap_adasum(model) for model in models] if together else []
        for number in range(2):
            if not together:
                optimizers = [None] * number + [wrap_adasum(models[number])]
            for step in range(STEPS):
                ((models[number](rows_of(step, [hvd.rank()]))).square().mean()).backward()
                optimizers[number].step()
                optimizers[number].zero_grad()
        return [it.tolist() for model in models for it in model.parameters()]

    assert train(True) == train(False)


def wrap_adasum(model):
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), op=hvd.Adasum)
