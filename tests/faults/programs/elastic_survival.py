# SPDX-License-Identifier: Apache-2.0
"""Train elastically with process sets, checkpoints, a timeline and the autotuner, until a file appears.

Arguments: the file, and the folder of the checkpoints. Each worker reports the first step of each generation, with the
process sets, settings and files that exist then.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
from faultkit.newcomers import wait_if_held_back
from faultkit.reports import report

import horovod.numpy as hvd
from horovod.common.context import default_context

STOP, FOLDER = sys.argv[1:3]
BIRTH = int(os.environ["HOROVOD_BIRTH_ID"])
PAIR, LAST = hvd.ProcessSet([0, 1]), hvd.ProcessSet([2])


def workers_of(process_set):
    """Return the birth ids of the set's members, gathered within the set, or None on other workers."""
    return hvd.allgather_object(BIRTH, "births", process_set) if process_set.included() else None


def refusal(process_set):
    try:
        hvd.allreduce(np.ones(1), name="refused", process_set=process_set)
    except ValueError as error:
        return str(error)


def tuning():
    found = json.loads(default_context.world.describe())
    values = [found[name] for name in ("fusion_threshold", "cycle_time_us", "chunk_bytes")]
    return {"autotune": found["autotune"], "tuned": values}


@hvd.elastic.run
def train(state):
    step, tuned_before = 0, False
    while not hvd.allreduce(np.array([float(os.path.exists(STOP))]), name="stop")[0]:
        gradient = hvd.allreduce(np.full(8, 1.0), name="gradient")
        state.weights = state.weights + gradient
        state.steps += 1
        step += 1
        if step == 1:
            report(
                "stepped",
                birth=BIRTH,
                size=hvd.size(),
                generation=default_context.generation,
                steps=state.steps,
                weight=float(state.weights[0]),
                pair=workers_of(PAIR),
                last=workers_of(LAST),
                sizes=[PAIR.size(), LAST.size()],
                refusal=refusal(LAST) if LAST.size() == 0 else None,
                **tuning(),
            )
        state.commit()
        if not tuned_before and tuning()["autotune"] == "done":
            report("tuned", birth=BIRTH, steps=state.steps, **tuning())
            tuned_before = True
        if step == 1:
            report("committed", birth=BIRTH, generation=default_context.generation, steps=state.steps)


wait_if_held_back(Path(STOP).parent)
hvd.init(process_sets=[PAIR, LAST])
report("ready", birth=BIRTH)
state = hvd.elastic.NumpyState(weights=np.zeros(8), steps=0)
resumed = hvd.elastic.checkpoint(state, FOLDER, keep=2).resumed_from
report("resumed", birth=BIRTH, path=None if resumed is None else resumed.name)
train(state)
report("done", birth=BIRTH, size=hvd.size(), steps=state.steps, weights=float(state.weights.sum()))
