# SPDX-License-Identifier: Apache-2.0
"""Train elastically with hvd.DiLoCo until a file appears; report the first round of each generation, and the end.

The only argument is the file. Each worker makes inner steps of its own, so that losing one would show in its weights.
"""

import hashlib
import os
import sys

import numpy as np
import torch
from faultkit.reports import report

import horovod.torch as hvd
from horovod.common.context import default_context

STOP = sys.argv[1]
BIRTH = int(os.environ["HOROVOD_BIRTH_ID"])


def bits_of(values):
    return hashlib.sha1(b"".join(np.ascontiguousarray(value).tobytes() for value in values)).hexdigest()


def described(state):
    core = state.optimizer.core
    outer = bits_of([*core.outer.weights, *core.outer.momentum])
    weights = bits_of([value.detach().numpy() for value in state.model.parameters()])
    found = {"steps": core.rounds, "inner_steps": core.steps, "outer": outer, "weights": weights}
    return {**found, "epoch": state.epoch, "size": hvd.size(), "pid": os.getpid()}


@hvd.elastic.run
def train(state):
    is_new = True
    while not hvd.allreduce(torch.tensor([float(os.path.exists(STOP))]), name="stop")[0]:
        first = state.optimizer.core.rounds
        while state.optimizer.core.rounds < first + 2:
            state.optimizer.zero_grad()
            data = torch.randn(4, 6, generator=GENERATOR)
            (state.model(data) - data.sum(1, keepdim=True)).square().mean().backward()
            state.optimizer.step()
        state.epoch += 1
        if is_new:
            report("stepped", birth=BIRTH, generation=default_context.generation, **described(state))
            is_new = False
        state.commit()
    state.optimizer.finish()
    return described(state)


hvd.init()
GENERATOR = torch.Generator().manual_seed(BIRTH)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
inner = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer = hvd.DiLoCo(inner, every=4, fragments=2, named_parameters=model.named_parameters())
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
final = train(hvd.elastic.TorchState(model=model, optimizer=optimizer, scheduler=scheduler, epoch=0))
report("done", birth=BIRTH, **final)
