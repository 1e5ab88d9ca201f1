# SPDX-License-Identifier: Apache-2.0
"""Train elastically until a file appears; report the first step of each generation, and how training ended.

Arguments: numpy or torch, the file, and optionally a birth id from which on workers fail at once. The worker with the
birth id TEST_FREEZES stops before it asks for its rank, that with TEST_FREEZES_IN_INIT after it has received one.
TEST_STEPS names a file to which every worker appends the time, the generation and the number of each step.
TEST_PAUSE_AFTER_INIT is how many seconds a worker waits between hvd.init() and its first collective in each generation
but the first.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from faultkit.newcomers import wait_if_held_back
from faultkit.reports import report

import horovod.numpy as hvd
from horovod.common import place_variables
from horovod.common.context import default_context
from horovod.common.elastic import ObjectState, run_fn
from horovod.common.objects import broadcast_object
from horovod.common.rendezvous.client import Connection

FRAMEWORK, STOP = sys.argv[1:3]
BIRTH = int(os.environ["HOROVOD_BIRTH_ID"])
LOG = os.environ.get("TEST_STEPS")
report("starts", birth=BIRTH, planned=[int(os.environ[name]) for name in place_variables.NAMES])
if os.environ.get("TEST_FREEZES") == str(BIRTH):
    os.kill(os.getpid(), signal.SIGSTOP)


def freeze(*_):
    report("freezes", birth=BIRTH)
    os.kill(os.getpid(), signal.SIGSTOP)


if os.environ.get("TEST_FREEZES_IN_INIT") == str(BIRTH):
    Connection.meet = freeze
wait_if_held_back(Path(STOP).parent)
if len(sys.argv) > 3 and int(sys.argv[3]) <= BIRTH:
    sys.exit(7)


class InTwoParts(ObjectState):
    """State that is synchronised in two parts, like a model and its optimizer.

    The worker with the birth id TEST_DIES_IN_SYNC dies between them from generation 2 on, when a new worker joins.
    """

    def sync(self):
        self.half = self._bcast_object(self.half)
        if os.environ.get("TEST_DIES_IN_SYNC") == str(BIRTH) and default_context.generation > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        super().sync()


def train(state, step):
    is_new = True
    assert getattr(state, "half", state.steps) == state.steps, "half of a state was loaded"
    while not hvd.allreduce(np.array([float(os.path.exists(STOP))]), name="stop")[0]:
        step(state)
        state.steps += 1
        if is_new:
            generation = default_context.generation
            place = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
            assert place == tuple(int(os.environ[name]) for name in place_variables.NAMES), "hvd.init() sets them"
            assert place_variables.PLANNED not in os.environ
            report("stepped", birth=BIRTH, size=hvd.size(), generation=generation, steps=state.steps)
            is_new = False
        state.commit()


def with_numpy():
    def step(state):
        """Add 7 * n + 3 in step n, whatever the number of ranks."""
        mine = 7.0 * state.steps + 4.0 - hvd.size() if hvd.rank() == 0 else 1.0
        state.weights = state.weights + hvd.allreduce(np.full(8, mine), op=hvd.Sum, name="gradient")
        state.half = state.steps + 1
        if LOG:
            with open(LOG, "a") as log:
                log.write(f"{time.monotonic_ns()} {default_context.generation} {state.steps}\n")
            time.sleep(0.005)

    def reset():
        hvd.shutdown()
        hvd.init()
        time.sleep(float(os.environ.get("TEST_PAUSE_AFTER_INIT", "0")))

    state = InTwoParts(lambda value: broadcast_object(value, 0), hvd.rank, weights=np.zeros(8), steps=0, half=0)
    run_fn(train, reset)(state, step)
    return state.steps, float(state.weights.sum())


def with_torch():
    import torch

    import horovod.torch as hvd_torch

    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd_torch.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def step(state):
        state.optimizer.zero_grad()
        state.model(torch.randn(4, 16)).square().mean().backward()
        state.optimizer.step()
        time.sleep(0.005)  # leaves processor time for the replacement, which is importing modules

    state = hvd_torch.elastic.TorchState(model, optimizer, steps=0)
    hvd_torch.elastic.run(train)(state, step)
    return state.steps, sum(parameter.sum().item() for parameter in model.parameters())


hvd.init()
report("ready", birth=BIRTH)
steps, weights = with_torch() if FRAMEWORK == "torch" else with_numpy()
report("done", birth=BIRTH, size=hvd.size(), steps=steps, weights=weights)
