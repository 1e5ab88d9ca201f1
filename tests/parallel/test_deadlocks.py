# SPDX-License-Identifier: Apache-2.0
"""Ranks that wait for each other: an error on every rank if the deadlock is certain, otherwise a warning."""

import re
import threading
import time

import numpy as np
import pytest
from harness.arrays import check_equal
from harness.waiting import CHECK_S, DEADLOCK2, DEADLOCK4, await_text, fresh_world, stderr_kept
from harness.worlds import in_worlds, on_all_ranks
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import horovod.numpy as hvd
from horovod._engine import EngineCall, TensorLocation
from horovod.common.calls import ALLREDUCE
from horovod.common.context import default_context
from horovod.common.dtypes import ID_BY_NAME

LIMIT_S = 20.0
LATE_S = 3 * CHECK_S


def reduce(name, **options):
    return hvd.allreduce(np.ones(3), name=name, **options)


def gather(name):
    return hvd.allgather(np.ones(3), name=name)


def reduce_group(count):
    return hvd.grouped_allreduce([np.ones(2)] * count, name="g")


# For each case: what the last rank calls, what all other ranks call, and how the error describes the calls.
DIFFERENT = {
    "kinds": (lambda: gather("x"), lambda: reduce("x"), "{others} in allreduce 'x'", "{last} in allgather 'x'"),
    "names": (lambda: reduce("a"), lambda: reduce("b"), "{others} in allreduce 'b'", "{last} in allreduce 'a'"),
    "no names": (
        lambda: hvd.allreduce(np.ones(3)),
        lambda: hvd.broadcast(np.ones(3), 0),
        "{others} in broadcast number 1 without a name",
        "{last} in allreduce number 1 without a name",
    ),
    "groups": (
        lambda: reduce_group(3),
        lambda: reduce_group(2),
        "{others} in grouped_allreduce 'g' of 2 tensors",
        "{last} in grouped_allreduce 'g' of 3 tensors",
    ),
    "lists of sets": (
        lambda: hvd.add_process_set([0]),
        lambda: hvd.add_process_set([1]),
        "{others} in hvd.add_process_set([1])",
        "{last} in hvd.add_process_set([0])",
    ),
    "objects": (
        lambda: hvd.allgather_object(1),
        lambda: hvd.broadcast_object(1, 0),
        "{others} in broadcast 'broadcast_object.sz'",
        "{last} in allgather 'allgather_object.sz'",
    ),
    "a barrier": (hvd.barrier, lambda: reduce("x"), "{others} in allreduce 'x'", "{last} in hvd.barrier()"),
}
LINE = r" \((?:\S*/)?test_deadlocks\.py:\d+\)"


def expect(call, *parts):
    """Check that this call fails in time with an error of these parts. Return the text of the error."""
    began = time.monotonic()
    with pytest.raises(hvd.HorovodMismatchError) as raised:
        call()
    assert time.monotonic() - began < LIMIT_S
    last = hvd.size() - 1
    ranks = {"last": f"rank {last}", "others": "rank 0" if last == 1 else f"ranks {', '.join(map(str, range(last)))}"}
    listed = ", ".join(re.escape(part.format(**ranks)) + LINE for part in parts)
    text = str(raised.value)
    expected = rf"Ranks wait for different operations: {listed}\. All ranks must call the same collectives\."
    assert re.fullmatch(expected, text), text
    return text


def check_engine_works():
    check_equal(reduce("after", op=hvd.Sum), np.full(3, float(hvd.size())))


def differ(ways):
    """Run these cases one after the other. After each error all ranks must be able to continue."""
    texts = []
    check_engine_works()  # so that no rank is late because it still has to import this module
    for odd, others, *parts in (DIFFERENT[way] for way in ways):
        texts.append(expect(odd if hvd.rank() == hvd.size() - 1 else others, *parts))
        check_engine_works()
    return texts


@on_all_ranks(DEADLOCK2)
def test_two_ranks_that_do_different_things():
    return differ(DIFFERENT)


@on_all_ranks(DEADLOCK4)
def test_one_of_four_ranks_that_does_something_else():
    return differ(["kinds", "groups"])


def in_this_line():
    hvd.allreduce(np.ones(3), name="first")


def in_another_line():
    hvd.allreduce(np.ones(3), name="second")


@on_all_ranks(DEADLOCK2)
def test_the_lines_are_those_of_the_program():
    lines = [function.__code__.co_firstlineno + 1 for function in (in_this_line, in_another_line)]
    for name in ("first", "second") * 3:
        reduce(name)  # so that they take the fast path without the leader
    text = expect(
        in_another_line if hvd.rank() else in_this_line, "rank 0 in allreduce 'first'", "rank 1 in allreduce 'second'"
    )
    check_engine_works()
    assert re.findall(r"py:(\d+)", text) == [str(line) for line in lines]


@on_all_ranks(DEADLOCK4)
def test_different_process_sets():
    pair, three = hvd.add_process_set([0, 1]), hvd.add_process_set([1, 2, 3])
    with pytest.raises(hvd.HorovodMismatchError) as raised:
        reduce("x", process_set=[pair, three, hvd.global_process_set, hvd.global_process_set][hvd.rank()])
    assert re.sub(LINE, "", str(raised.value)) == (
        "Ranks wait for different operations: rank 0 in allreduce 'x' of process set 1 (ranks 0, 1), "
        "rank 1 in allreduce 'x' of process set 2 (ranks 1, 2, 3), ranks 2, 3 in allreduce 'x'. "
        "All ranks must call the same collectives."
    )
    for process_set in (pair, three):
        if process_set.included():
            check_equal(reduce("y", op=hvd.Sum, process_set=process_set), np.full(3, float(process_set.size())))
    check_engine_works()
    return str(raised.value)


@on_all_ranks(DEADLOCK4)
def test_ranks_that_have_joined_are_stuck_with_the_others():
    check_engine_works()
    calls = [hvd.join, lambda: reduce("x"), lambda: reduce("y"), hvd.join]
    with pytest.raises(hvd.HorovodMismatchError, match="ranks 0, 3 in hvd.join().*, rank 1 in allreduce 'x'"):
        calls[hvd.rank()]()
    check_engine_works()
    assert 0 <= hvd.join() < 4


@on_all_ranks(DEADLOCK2)
def test_what_stuck_ranks_want_of_each_other_fails_and_what_all_have_asked_for_does_not():
    both = hvd.allreduce_async(np.ones(3), op=hvd.Sum, name="of both")
    own = hvd.allreduce_async(np.ones(3), name=f"of rank {hvd.rank()}")
    expect(
        lambda: hvd.synchronize(own),
        "rank 0 in allreduce 'of rank 0'",
        "rank 1 in allreduce 'of rank 1'",
    )
    check_equal(hvd.synchronize(both), np.full(3, 2.0))
    check_engine_works()


@on_all_ranks(DEADLOCK2, DEADLOCK4)
def test_a_rank_that_is_late_or_may_give_up_is_not_stuck():
    if hvd.rank() == 1:
        time.sleep(LATE_S)
    reduce("late")
    world, arrays = default_context.world, [np.ones(3) for _ in range(hvd.size())]

    def start(owner):
        address = arrays[owner].ctypes.data
        tensor = TensorLocation(ID_BY_NAME["float64"], (3,), address, address)
        return world.submit(0, f"of rank {owner}", EngineCall(ALLREDUCE), tensor)

    handles = [start(hvd.rank())]
    world.wait(handles[0], LATE_S)  # a wait with a limit: until it ends, both ranks only wait for each other
    handles += [start(owner) for owner in range(hvd.size()) if owner != hvd.rank()]
    for handle in handles:
        world.wait(handle)
        world.release(handle)
    check_engine_works()


@on_all_ranks(DEADLOCK2)
def test_with_another_thread_it_is_a_warning():
    """The other thread later calls what the other rank waits for, so no operation fails."""
    mine, other = ("x", "y") if hvd.rank() == 0 else ("y", "x")
    # A thread that has never called Horovod has ten check times to make its first call.
    with fresh_world(0.5), stderr_kept() as written:

        def rescue():
            await_text(written, "Unless another thread")
            reduce(other)

        thread = threading.Thread(target=rescue)
        thread.start()
        reduce(mine)
        thread.join()
        check_engine_works()
        warnings = re.findall(r"WARNING: (Ranks wait for different operations: .*)", written())
        places = rf"rank 0 in allreduce 'x'{LINE}, rank 1 in allreduce 'y'{LINE}"
        end = r"they wait for (5 s and then fail|ever): all ranks must call the same collectives\."
        for warning in warnings:
            assert re.fullmatch(rf".*: {places}\. Unless another thread.*, {end}", warning), warning
        # Each text is written once. A second text appears if one helper has called and the other rank is slow to go on.
        assert 1 <= len(warnings) == len(set(warnings)), written()


# Ranks that only wait are reported as deadlocked after three quarters of the check time. A thread that has never
# called Horovod must make its first call within ten check times, also on a busy machine.
PROGRAM_CHECK_S, LONG_DELAY_S = 0.3, 0.4

# A program cannot deadlock if all threads take its operations in one common order, no matter which thread of which
# rank makes each call.
programs = st.integers(1, 3).flatmap(
    # For each operation and each rank: the thread that calls it, and the delay before the call.
    lambda threads: st.lists(
        st.lists(
            st.tuples(st.integers(0, threads - 1), st.sampled_from([0.0, 0.0, 0.0, 0.1, LONG_DELAY_S])),
            min_size=4,
            max_size=4,
        ),
        min_size=2,
        max_size=6,
    )
)
examples = settings(
    deadline=None,
    max_examples=5,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    database=None,
    print_blob=True,
)


def follow(program):
    """Run this rank's part of a program. Thread 0 is the main thread, which starts threads 1 and 2."""
    rank, troubles = hvd.rank(), []

    def work(thread):
        try:
            for number, places in enumerate(program):
                own_thread, delay = places[rank]
                if own_thread == thread:
                    time.sleep(delay)
                    reduce(str(number)) if number % 3 else gather(str(number))
        except BaseException as error:
            troubles.append(error)

    with fresh_world(PROGRAM_CHECK_S):
        threads = [threading.Thread(target=work, args=[thread]) for thread in (1, 2)]
        for thread in threads:
            thread.start()
        work(0)
        for thread in threads:
            thread.join()
        if troubles:
            raise troubles[0]


@in_worlds(DEADLOCK2, DEADLOCK4)
@examples
@given(program=programs)
# A thread that has not called Horovod before makes the call that the other ranks wait for.
@example(program=[[(1, LONG_DELAY_S), (0, 0.0), (0, 0.0), (0, 0.0)], [(0, 0.0)] * 4])
def test_never_a_false_error(world, program):
    world.run(follow, limit_s=40, program=program)
