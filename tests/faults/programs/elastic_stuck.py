# SPDX-License-Identifier: Apache-2.0
"""Train elastically until a file appears. Another file makes worker 1 hang in its own code."""

import os
import sys
import threading

import numpy as np
from faultkit.reports import report

import horovod.numpy as hvd
from horovod.common.context import default_context
from horovod.common.elastic import ObjectState, run_fn
from horovod.common.objects import broadcast_object

HANG, STOP = sys.argv[1:3]
BIRTH = int(os.environ["HOROVOD_BIRTH_ID"])


def read_from_a_disk_that_is_gone():
    threading.Event().wait()


def reset():
    hvd.shutdown()
    hvd.init()


def train(state):
    is_new = True
    while not hvd.allreduce(np.array([float(os.path.exists(STOP))]), name="stop")[0]:
        if BIRTH == 1 and os.path.exists(HANG):
            read_from_a_disk_that_is_gone()
        hvd.allreduce(np.ones(8), name="gradient")
        state.steps += 1
        if is_new:
            report("stepped", birth=BIRTH, size=hvd.size(), generation=default_context.generation, steps=state.steps)
            is_new = False
        state.commit()


hvd.init()
state = ObjectState(lambda value: broadcast_object(value, 0), hvd.rank, steps=0)
run_fn(train, reset)(state)
report("done", birth=BIRTH, size=hvd.size(), steps=state.steps, weights=0.0)
