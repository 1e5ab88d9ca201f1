# SPDX-License-Identifier: Apache-2.0
"""Trains elastically until step 8, with checkpoints. Arguments: the folder, and at which line worker 0 is killed.

Counted are lines of this program and of what keeps elastic states, from the call of hvd.init() to the first commit.
Workers on host x see the folder TEST_FOLDER_OF_x, if that is set. With TEST_STATES=2 the program trains two states, one
after the other, and the lines before the second one's first commit are counted. TEST_SIZE: how many workers there must
be at the end. TEST_LETS_COME: the worker that is held back until a step was made. Killed at line -2: after hvd.init().
With TEST_RAISES, worker 0 raises an error of its own there.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
from faultkit.newcomers import let_come, wait_if_held_back
from faultkit.reports import report

import horovod.numpy as hvd
from horovod.common.elastic import State
from horovod.common.exceptions import HorovodCheckpointError

FOLDER, KILLED_AT = sys.argv[1], int(sys.argv[2])
BIRTH = int(os.environ["HOROVOD_BIRTH_ID"])
STATES = int(os.environ.get("TEST_STATES", "1"))
SIZE = int(os.environ.get("TEST_SIZE", "1"))
LAST_STEP = 8
AFTER_INIT = -2
COUNTED = ("checkpoint", "checkpoint_file", "checkpoint_folder", "context", "elastic", "lineage", "sync_decision")
FILES = {__file__, *(os.path.join(os.path.dirname(hvd.__file__), "..", "common", f"{name}.py") for name in COUNTED)}
FILES = {os.path.realpath(name) for name in FILES}
lines = lines_before_sync = 0


def trace(frame, event, _):
    global lines
    if event == "call":
        return trace if os.path.realpath(frame.f_code.co_filename) in FILES else None
    if event == "line":
        lines += 1
        if lines == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace


def count_lines():
    """In functions that are called from now on, until a state commits."""

    def commit(state, original=State.commit):
        sys.settrace(None)
        report("committed", birth=BIRTH, lines=lines, before_sync=lines_before_sync)
        State.commit = original
        state.commit()

    if BIRTH == 0 and KILLED_AT >= 0:
        State.commit = commit
        sys.settrace(trace)


class Counting(hvd.elastic.NumpyState):
    """A state that notes how many lines were counted before it was handed to the other workers."""

    def sync(self):
        global lines_before_sync
        lines_before_sync = lines
        super().sync()


@hvd.elastic.run
def train(state):
    report("begins", birth=BIRTH, step=state.step, size=hvd.size(), weight=float(state.weights[0]))
    while state.step < LAST_STEP or hvd.size() < SIZE:
        state.weights = state.weights + hvd.allreduce(np.ones(4), name="gradient")
        state.step += 1
        state.commit()
        if late := os.environ.pop("TEST_LETS_COME", ""):
            let_come(Path(FOLDER).parent, int(late))


def train_in(folder):
    state = Counting(weights=np.zeros(4), step=0)
    hvd.elastic.checkpoint(state, folder)
    try:
        train(state)
    except HorovodCheckpointError as error:
        report("failed", birth=BIRTH, text=str(error))
        raise
    report("done", birth=BIRTH, step=state.step, weight=float(state.weights[0]))


def main(folder):
    hvd.init()
    if BIRTH == 0 and KILLED_AT == AFTER_INIT:
        os.kill(os.getpid(), signal.SIGKILL)
    if BIRTH == 0 and "TEST_RAISES" in os.environ:
        raise ValueError("worker 0 fails")
    train_in(folder)


here = Path(os.environ.get(f"TEST_FOLDER_OF_{os.environ['HOROVOD_HOSTNAME']}", FOLDER))
wait_if_held_back(Path(FOLDER).parent)
if STATES == 1:
    count_lines()
    main(here)
else:
    main(here)
    count_lines()
    train_in(here.with_name("second"))
