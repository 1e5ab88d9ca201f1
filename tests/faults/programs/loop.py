# SPDX-License-Identifier: Apache-2.0
"""Reduce until a collective fails, or until rank 0 gets SIGUSR1: then initialise once more, and end normally."""

import functools
import json
import os
import signal
import time
from collections.abc import Callable

import numpy as np
from faultkit.reports import report

import horovod.numpy as hvd
from horovod.common.context import default_context

stop = False


def ask_to_stop(*_: object) -> None:
    global stop
    stop = True


def fail(error: hvd.HorovodInternalError, pending: int) -> None:
    failed_at = time.monotonic()
    try:
        hvd.synchronize(pending)
        lost_rank = None
    except hvd.HorovodInternalError as own:
        lost_rank = own.lost_rank
    try:
        hvd.allreduce(np.ones(3), name="after the failure")
        again = "no error"
    except hvd.HorovodInternalError as later:
        again = str(later)
    again_took = time.monotonic() - failed_at
    hvd.shutdown()
    report(
        "failed",
        at=failed_at,
        text=str(error),
        lost_rank=lost_rank,
        again=again,
        again_took=again_took,
        shutdown_took=time.monotonic() - failed_at - again_took,
    )


def check_gathered(elements: int) -> None:
    result = hvd.allgather(np.full(elements, hvd.rank() + 1.0), name=f"gather.{elements}")
    wanted = np.repeat(np.arange(1.0, hvd.size() + 1), elements)
    assert np.array_equal(result, wanted), result


@functools.cache
def gradient_of(elements: int) -> Callable[[], np.ndarray]:
    import torch

    import horovod.torch

    weight = torch.nn.Parameter(torch.zeros(elements, dtype=torch.float64))
    optimizer = horovod.torch.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), [(f"weight.{elements}", weight)])

    def step() -> np.ndarray:
        optimizer.zero_grad()
        (weight * (hvd.rank() + 1.0) * hvd.size()).sum().backward()
        optimizer.step()
        return weight.grad.numpy()

    return step


def check_sum(elements: int) -> None:
    if "LOOP_OF_ALLGATHERS" in os.environ:
        check_gathered(10 * elements)
        return
    if "LOOP_OF_GRADIENTS" in os.environ:
        result = gradient_of(elements)()
    elif "LOOP_IN_SHARED_ARRAYS" in os.environ:
        array = hvd.shared_zeros(elements)
        array[:] = hvd.rank() + 1
        result = hvd.allreduce_(array, op=hvd.Sum, name=f"loop.{elements}")
    else:
        result = hvd.allreduce(np.full(elements, hvd.rank() + 1.0), op=hvd.Sum, name=f"loop.{elements}")
    assert (result == hvd.size() * (hvd.size() + 1) / 2).all(), result


def loop() -> tuple[int, float]:
    """Return the number of rounds, and the longest one in seconds."""
    rounds, slowest = 0, 0.0
    while True:
        began = time.monotonic()
        for elements in (10, 100_000):
            check_sum(elements)
        if hvd.allreduce(np.array([stop], np.int32), op=hvd.Max, name="stop")[0]:
            return rounds, slowest
        rounds, slowest = rounds + 1, max(slowest, time.monotonic() - began)
        if rounds == 3:
            world = default_context.world
            rendezvous = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
            report("ready", port=world.tcp_port, rendezvous=rendezvous)


# The launcher terminates the survivors when one rank fails, but they still have to report the engine's error.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, ask_to_stop)
hvd.init()
# No other rank uses this name, so the operation is in flight whenever a failure occurs.
pending = hvd.allreduce_async(np.ones(1), name=f"only on rank {hvd.rank()}")
try:
    rounds, slowest = loop()
except hvd.HorovodInternalError as error:
    fail(error, pending)
    raise
refused = json.loads(default_context.world.describe())["refused_connections"]
hvd.shutdown()
hvd.init()
check_sum(1000)
report("finished", rounds=rounds, slowest=slowest, refused=refused)
