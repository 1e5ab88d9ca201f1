# SPDX-License-Identifier: Apache-2.0
"""Fault 41: ranks wait for different operations while other threads run.

Threads that have never called Horovod only delay the error. HOROVOD_TEST_IDLE (default 3) is the number of random runs,
HOROVOD_TEST_SEED their first seed.
"""

import contextlib
import os
import queue
import random
import re
import threading
import time

import numpy as np
import pytest
from harness.arrays import check_equal
from harness.waiting import DEADLOCK2, DEADLOCK4, fresh_world
from harness.worlds import in_worlds, on_all_ranks

import horovod.numpy as hvd

CHECK_S = 0.1
PATIENCE_S = 10 * CHECK_S
LIMIT_S = 20.0
TIMES = int(os.environ.get("HOROVOD_TEST_IDLE", "3"))
SEED = int(os.environ.get("HOROVOD_TEST_SEED", str(random.randrange(1 << 30))))
LINE = r" \((?:\S*/)?test_idle_threads\.py:\d+\)"


def reduce(name):
    return hvd.allreduce(np.ones(3), name=name, op=hvd.Sum)


@contextlib.contextmanager
def threads(*bodies):
    """Run each of these functions in a thread. Each gets an event that is set when the thread must end."""
    ends, running = threading.Event(), threading.Semaphore(0)

    def run(body):
        running.release()
        body(ends)

    started = [threading.Thread(target=run, args=[body], name=body.__name__) for body in bodies]
    for thread in started:
        thread.start()
    try:
        for _ in started:
            running.acquire()  # wait until all threads have started, because the errors name lines of this file
        yield
    finally:
        ends.set()
        for thread in started:
            thread.join()


def logger(ends):
    """Block on a lock, as a logging thread does until there is something to write."""
    ends.wait()


def monitor(ends):
    """Poll again and again, as the thread of a progress bar does."""
    while not ends.wait(0.01):
        pass


def tracker(ends):
    """Wait for items of a queue, as a thread that uploads metrics does."""
    waiting = queue.Queue()
    while not ends.is_set():
        with contextlib.suppress(queue.Empty):
            waiting.get(timeout=0.05)


IDLE = [logger, monitor, tracker]


def differ():
    """Wait for an operation that differs between the ranks. Return the text of the error and the seconds waited."""
    began = time.monotonic()
    with pytest.raises(hvd.HorovodMismatchError) as raised:
        reduce("x" if hvd.rank() == 0 else "y")
    waited_s = time.monotonic() - began
    assert waited_s < LIMIT_S
    check_equal(reduce("after it"), np.full(3, float(hvd.size())))
    return str(raised.value), waited_s


def check_text(text, named):
    places = rf"rank 0 in allreduce 'x'{LINE}, rank 1 in allreduce 'y'{LINE}"
    idle = re.escape(
        "They have waited for more than 1 s, and their other threads, which have never called Horovod, did "
    )
    threads = "; ".join(rf"rank {rank}: 'logger'{LINE}" for rank in named)
    end = r"\. All ranks must call the same collectives\."
    assert re.fullmatch(rf"Ranks wait for different operations: {places}\. {idle}not help: {threads}{end}", text), text


@pytest.mark.parametrize("where", ["everywhere", "on one rank"])
@in_worlds(DEADLOCK2)
def test_fault_41_idle_threads_delay_the_error(world, where):
    texts = world.run(delayed, limit_s=40, where=where)
    assert len(set(texts)) == 1


def delayed(where):
    with fresh_world(CHECK_S), threads(*([logger] if where == "everywhere" or hvd.rank() == 1 else [])):
        text, waited_s = differ()
    assert waited_s > PATIENCE_S
    check_text(text, [0, 1] if where == "everywhere" else [1])
    return text


@on_all_ranks(DEADLOCK4, limit_s=60)
def test_fault_41_on_four_ranks_of_two_hosts():
    # A longer check time, so that the last rank calls before the other ranks stop waiting for their idle threads.
    with fresh_world(4 * CHECK_S), threads(*([monitor, tracker] if hvd.rank() in (0, 3) else [])):
        text, _ = differ()
    assert re.search(r"rank 0: 'monitor' \(\S+\), 'tracker' \(\S+\); rank 3: 'monitor'", text), text
    assert "rank 2: " not in text
    return text


@pytest.mark.parametrize("calls", ["allreduce", "synchronize", "poll"])
@in_worlds(DEADLOCK2)
def test_a_thread_that_has_called_before_may_call_again(world, calls):
    """The thread calls what the other rank waits for, long after an idle thread would no longer be waited for."""
    world.run(rescued, limit_s=40, calls=calls)


def rescued(calls):
    def helper(ends):
        if calls == "allreduce":
            reduce("of both helpers")
        elif calls == "synchronize":
            hvd.synchronize(handle)
        else:
            while not hvd.poll(handle):
                time.sleep(0.001)
        has_called.set()
        ends.wait(2.5 * PATIENCE_S)
        reduce("y" if hvd.rank() == 0 else "x")

    has_called = threading.Event()
    with fresh_world(CHECK_S):
        handle = hvd.allreduce_async(np.ones(3), name="of both")
        while not hvd.poll(handle):  # polling a finished operation counts as a call
            time.sleep(0.001)
        with threads(helper, logger):
            has_called.wait()
            reduce("x" if hvd.rank() == 0 else "y")
        if calls != "synchronize":
            hvd.synchronize(handle)


@in_worlds(DEADLOCK2)
@pytest.mark.timeout(60 + 10 * TIMES)
def test_fault_41_random_threads(world):
    """The ranks fail, unless one of their threads has called Horovod before: then they wait for its next call."""
    for number in range(TIMES):
        print(f"HOROVOD_TEST_SEED={SEED}, {number}")
        world.run(strayed, limit_s=40, seed=SEED + number)


def strayed(seed):
    """Draw the threads of both ranks from one seed, and run those of this rank."""
    drawn = random.Random(seed)
    idle = [drawn.choices(IDLE, k=drawn.randrange(4)) for _ in range(2)]
    callers = [drawn.random() < 0.3 for _ in range(2)]
    late_s = [drawn.choice([0, 0, 0.05, 0.3]) for _ in range(2)]
    rank = hvd.rank()
    other = "x" if rank else "y"

    def rescuer(ends):
        if callers[rank]:
            reduce("of the rescuers")
        has_called.set()
        ends.wait(1.5 * PATIENCE_S)
        if any(callers):
            reduce(other)

    has_called = threading.Event()
    with fresh_world(CHECK_S):
        if any(callers) and not callers[rank]:
            reduce("of the rescuers")  # started by the other rank's rescuer, so this rank's main thread takes part
        with threads(*idle[rank], *([rescuer] if any(callers) else [])):
            if any(callers):
                has_called.wait()
                time.sleep(late_s[rank])
                reduce("y" if rank else "x")
            else:
                time.sleep(late_s[rank])
                text, waited_s = differ()
                assert ("never called" in text) == any(idle)
                assert waited_s > PATIENCE_S / 2 or not any(idle)
