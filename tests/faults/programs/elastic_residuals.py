# SPDX-License-Identifier: Apache-2.0
"""Train elastically with int8 and with top-k until a file appears; report the first step of each generation.

Two models learn the weights of a teacher. The loss on all examples, which is equal on all ranks, falls towards zero.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from faultkit.newcomers import wait_if_held_back
from faultkit.reports import report

import horovod.torch as hvd
from horovod.common.context import default_context

STOP = sys.argv[1]
BIRTH = int(os.environ["HOROVOD_BIRTH_ID"])
WIDTH = 128  # 128 x 128 values are four units of 4,096: two shares of two chunks
METHODS = (hvd.Compression.int8(min_bytes=0), hvd.Compression.topk(0.2, min_bytes=0))
wait_if_held_back(Path(STOP).parent)


def digest(models):
    return hashlib.sha256(b"".join(it.weight.detach().numpy().tobytes() for it in models)).hexdigest()


def norms(optimizers):
    """Return the norm of what each optimizer's hook keeps on this rank."""
    buckets = [it.comm_hook.state_dict()["buckets"] for it in optimizers]
    return [sum(float(t.norm()) for part in it.values() for t in part["memory"].values()) for it in buckets]


def main():
    torch.manual_seed(BIRTH)
    models = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in METHODS]
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), [(f"model{number}", model.weight)], compression=method
        )
        for number, (model, method) in enumerate(zip(models, METHODS, strict=True))
    ]
    examples = torch.from_numpy(np.random.default_rng(0).standard_normal((256, WIDTH)).astype(np.float32))
    targets = examples @ torch.from_numpy(np.random.default_rng(1).standard_normal((WIDTH, WIDTH)).astype(np.float32))
    named = {f"model{number}": it for number, it in enumerate(models)}
    named |= {f"optimizer{number}": it for number, it in enumerate(optimizers)}

    @hvd.elastic.run
    def train(state):
        before = norms(optimizers)
        is_new = True
        while not hvd.allreduce(torch.tensor(float(os.path.exists(STOP))), name="stop"):
            mine = slice(hvd.rank(), None, hvd.size())
            losses = []
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                (model(examples[mine]) - targets[mine]).square().mean().backward()
                optimizer.step()
                with torch.no_grad():
                    losses.append(float((model(examples) - targets).square().mean()))
            state.steps += 1
            if is_new:
                same = len(set(hvd.allgather_object(digest(models)))) == 1
                details = {"same": same, "before": before, "kept": norms(optimizers), "steps": state.steps}
                generation = default_context.generation
                report("stepped", birth=BIRTH, size=hvd.size(), generation=generation, losses=losses, **details)
                is_new = False
            state.commit()
            time.sleep(0.01)  # leaves processor time for the replacement, which is importing modules

    state = hvd.elastic.TorchState(**named, steps=0)
    train(state)
    return state.steps, digest(models)


hvd.init()
report("ready", birth=BIRTH)
steps, weights = main()
report("done", birth=BIRTH, size=hvd.size(), steps=steps, weights=weights)
