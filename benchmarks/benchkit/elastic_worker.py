# SPDX-License-Identifier: Apache-2.0
"""Worker of benchmarks/elastic.py: it trains a small network until it is ended, and records its events with times.

Arguments: elastic, static or torchrun, and a folder, in which each process has its own file. The file has a line of
JSON for the first step of each generation, and one before the first call of hvd.init(). Times are of the monotonic
clock, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

PAUSE_S = 0.01  # stands for the computation of a step, and leaves the cores to workers that start
FEATURES, BATCH = 64, 32

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])
file = open(FOLDER / f"worker-{os.getpid()}", "ab", buffering=0)  # noqa: SIM115 - for life


def note(**what: Any) -> None:
    file.write((json.dumps({"pid": os.getpid(), "at": time.monotonic(), **what}) + "\n").encode())


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))


def one_step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.randn(BATCH, FEATURES)).square().mean().backward()
    optimizer.step()
    time.sleep(PAUSE_S)


def elastic() -> None:
    import horovod.torch as hvd
    from horovod.common.context import default_context

    moments: dict[str, float] = {}

    class State(hvd.elastic.TorchState):
        """State that records when each part of a recovery has ended."""

        def restore(self) -> None:
            super().restore()
            moments["restored"] = time.monotonic()

        def on_reset(self) -> None:
            moments["met"] = time.monotonic()
            super().on_reset()

        def sync(self) -> None:
            super().sync()
            moments["synced"] = time.monotonic()

    @hvd.elastic.run
    def train(state: State) -> None:
        is_new = True
        try:
            while True:
                one_step(state.model, state.optimizer)
                if is_new:
                    is_new = False
                    place = {"rank": hvd.rank(), "size": hvd.size(), "generation": default_context.generation}
                    note(**place, **moments)
                    moments.clear()
                moments["last_step"] = time.monotonic()
                state.commit()
        except hvd.HorovodInternalError as error:
            moments["raised"] = time.monotonic()
            note(error=str(error)[:200])
            raise

    # Done before hvd.init(), because the other ranks wait for a rank that has called it. torch imports more modules for
    # the first optimizer.
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    note(asks=True)
    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    train(State(model, optimizer))


def static() -> None:
    import horovod.torch as hvd

    # Ignored, because the launcher sends it to ranks that have not noticed a loss yet.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hvd.init()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    one_step(model, optimizer)
    note(rank=hvd.rank(), size=hvd.size(), generation=0)
    try:
        while True:
            one_step(model, optimizer)
    except hvd.HorovodInternalError:
        note(raised=time.monotonic())


def torchrun() -> None:
    """Train as torchrun's users do: the whole group restarts and loads a checkpoint."""
    torch.distributed.init_process_group("gloo")
    rank, checkpoint = torch.distributed.get_rank(), FOLDER / "checkpoint"
    model = network()
    if checkpoint.exists():
        model.load_state_dict(torch.load(checkpoint))
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.001, momentum=0.9)
    one_step(parallel, optimizer)
    place = {"rank": rank, "size": torch.distributed.get_world_size()}
    note(**place, generation=int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
    while True:
        one_step(parallel, optimizer)
        if rank == 0:
            torch.save(model.state_dict(), checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").rename(checkpoint)


if __name__ == "__main__":
    {"elastic": elastic, "static": static, "torchrun": torchrun}[KIND]()
