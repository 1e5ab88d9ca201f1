# SPDX-License-Identifier: Apache-2.0
"""Run an elastic job in which the first worker with rank 1 raises, and then takes some seconds to end."""

import atexit
import json
import os
import sys
import time

import numpy as np

import horovod.numpy as hvd
from horovod.common.elastic import ObjectState, run_fn

hvd.init()
state = ObjectState(hvd.broadcast_object, hvd.rank, step=0)


def report(**found):
    print(json.dumps({"birth": os.environ["HOROVOD_BIRTH_ID"], "at": time.time(), **found}), flush=True)


def reset():
    hvd.shutdown()
    hvd.init()


def train(state):
    try:
        while state.step < 6:
            if state.step == 3 and os.environ["HOROVOD_BIRTH_ID"] == "1":
                atexit.register(time.sleep, float(sys.argv[1]))
                report(raises=True)
                raise ValueError("boom")
            hvd.allreduce(np.ones(2), name="step")
            state.step += 1
            state.commit()
    except hvd.HorovodInternalError as error:
        report(error=str(error))
        raise
    report(done=hvd.size())


run_fn(train, reset)(state)
