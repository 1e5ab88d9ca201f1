# SPDX-License-Identifier: Apache-2.0
"""Random schedules that differ between ranks: each ends with the values or error that a model of the rules gives."""

import os
import warnings

import pytest
import torch
from harness.torch_rounds_model import COUNT, Plan, play
from harness.worlds import SHM3, in_worlds
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import horovod.torch as hvd

EXAMPLES = int(os.environ.get("ROUNDS_EXAMPLES", "150"))
LIMIT_S = 60  # seconds for a schedule, which normally takes milliseconds
IMPORT_LIMIT_S = 120  # seconds for the first schedule, and for the first one after a failure
pytestmark = pytest.mark.timeout(240 + EXAMPLES)  # the first schedule imports torch

examples = settings(
    deadline=None,
    derandomize=True,
    max_examples=EXAMPLES,
    # Do not shrink: a failing example ends the world, so each attempt would start all ranks again.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    database=None,
    print_blob=True,
)

ERRORS = {
    "The ranks have diverged": "apart",
    "Horovod has been shut down": "left",
    "later backward pass than on other ranks": "refused",
    "Raise backward_passes_per_step": "refused",
    "the gradients are being reduced at this moment": "under way",
}

# The operations of a rank.

every = tuple(range(COUNT))
some = st.one_of(st.just(every), st.just(every), st.sets(st.sampled_from(every), min_size=1).map(sorted).map(tuple))
backward = st.tuples(st.just("backward"), some, st.integers(1, 9))
zero_grad, step, synchronize, sync_step = ((name, (), 0) for name in ("zero_grad", "step", "synchronize", "sync_step"))


def iterations(passes):
    """Return a strategy for one iteration of a rank's training loop: mostly correct ones, else mistakes of users."""
    full = st.lists(backward, min_size=passes, max_size=passes)
    partial = st.lists(backward, max_size=passes)
    good = full.map(lambda passes: [zero_grad, *passes, step])
    return st.one_of(
        good,
        good,
        good,
        st.just([zero_grad, step]),
        st.just([]),
        partial.map(lambda passes: [zero_grad, *passes, step]),
        partial.map(lambda passes: [*passes, step]),
        full.map(lambda passes: [zero_grad, *passes, synchronize, sync_step]),
        full.map(lambda passes: [zero_grad, *passes, sync_step]),
        full.map(lambda passes: [zero_grad, *passes]),
        full.map(lambda passes: [zero_grad, *passes, zero_grad, step]),
        st.lists(st.one_of(backward, st.sampled_from([zero_grad, step, synchronize, sync_step])), max_size=3),
    )


@st.composite
def plans(draw, size):
    wait = draw(st.booleans())
    group = draw(st.sampled_from([(), (0, 1)]))
    fixed = st.lists(st.sampled_from([(), (), (1,), (0, 2)]), min_size=size, max_size=size)
    plan = Plan(
        passes=draw(st.sampled_from([1, 1, 2])),
        group=group,
        wait=wait,
        # The model does not cover operations in flight when a rank joins, nor groups that still wait for a gradient.
        joins=wait and not group and draw(st.booleans()),
        frozen=tuple(draw(st.just(()) | fixed)),
    )
    count = draw(st.integers(1, 4))
    rank = st.lists(iterations(plan.passes), min_size=count, max_size=count).map(in_one_list)
    return plan, draw(st.lists(rank, min_size=size, max_size=size) | rank.map(lambda one: [one] * size))


def in_one_list(lists):
    return [operation for operations in lists for operation in operations]


# The outcome of a schedule.


def follow(plan, schedules):
    """Run this rank's schedule. Return how it ended, the parameters, and the gradients."""
    schedule, frozen = schedules[hvd.rank()], plan.frozen[hvd.rank()] if plan.frozen else ()
    parameters = [torch.nn.Parameter(torch.zeros(number + 1)) for number in every]
    named = [(f"w{number}", parameter) for number, parameter in enumerate(parameters)]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(parameters, 1.0),
        named,
        op=hvd.Sum,
        backward_passes_per_step=plan.passes,
        groups=[[parameters[number] for number in plan.group]] if plan.group else None,
    )
    optimizer._reducer._wait_in_backward = plan.wait
    for number in frozen:
        parameters[number].requires_grad_(False)
    outcome = "ended"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about a step after synchronize()
            for operation in schedule:
                perform(optimizer, parameters, frozen, *operation)
    except (hvd.HorovodInternalError, AssertionError) as error:
        outcome = next((kind for text, kind in ERRORS.items() if text in str(error)), repr(error))
    if plan.joins:
        hvd.join()
    else:
        hvd.shutdown()
        hvd.init()
    values = [parameter.detach().unique().tolist() for parameter in parameters]
    return outcome, values, [None if it.grad is None else it.grad.unique().tolist() for it in parameters]


def perform(optimizer, parameters, frozen, name, numbers, factor):
    if name == "backward":
        trained = [number for number in numbers if number not in frozen]
        if trained:
            sum(factor * (number + 1) * parameters[number].sum() for number in trained).backward()
    elif name == "sync_step":
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    else:
        getattr(optimizer, name)()


def check(world, plan, schedules):
    expected = play(plan, schedules)
    limit_s = LIMIT_S if world.usable else IMPORT_LIMIT_S
    results = world.run(follow, limit_s=limit_s, plan=plan, schedules=schedules)
    for rank, (found, (outcome, parameters, gradients)) in enumerate(zip(expected, results, strict=True)):
        assert outcome == found.outcome, f"rank {rank}"
        if outcome == "ended":
            assert parameters == [[float(value)] for value in found.parameters], f"rank {rank}"
            if not plan.group and plan.wait:
                wanted = [None if gradient is None else [float(gradient)] for gradient in found.gradients]
                assert gradients == wanted, f"rank {rank}"
    return expected


def check_ranks_agree(plan, expected):
    """Check the model itself: ranks that made equally many steps have equal parameters, if all reached the end."""
    if all(rank.outcome == "ended" for rank in expected) and not plan.joins:
        for rank in expected:
            twins = [other for other in expected if other.steps == rank.steps]
            assert all(other.parameters == rank.parameters for other in twins)


def import_torch():
    return torch.__version__


@pytest.mark.checked_numbers("random schedules of backward(), step() and zero_grad()", against="a model of the rules")
@in_worlds("shm2", SHM3)
def test_any_schedules_end_right_or_raise_by_name(world):
    world.run(import_torch, limit_s=IMPORT_LIMIT_S)

    @examples
    @given(made=plans(world.size))
    def run(made):
        check_ranks_agree(made[0], check(world, *made))

    run()
