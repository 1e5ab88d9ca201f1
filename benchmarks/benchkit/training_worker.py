# SPDX-License-Identifier: Apache-2.0
"""Rank of the training-step benchmark: it makes steps of one workload in one way on request.

Run as `python -m benchkit.training_worker`; benchkit.worker describes the protocol.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchkit.gate import Gate
from benchkit.training_ways import BY_NAME, Way
from benchkit.worker import Obedient, parse_arguments, serve, settle
from benchkit.workloads import build

_LEARNING_RATE = 1e-4
_TIMEOUT = timedelta(seconds=120)


class TrainingWorker(Obedient):
    def __init__(self, gate: Gate, rank: int) -> None:
        self.gate = gate
        self.rank = rank
        self.model: nn.Module | None = None
        self.step: Callable[[], None] = lambda: None

    def do_build(self, way: str, workload: str, batch: int) -> dict[str, Any]:
        self.model, inputs = build(workload, self.rank, batch)
        self.step = _step(BY_NAME[way], self.model, inputs)
        sizes = [parameter.numel() for parameter in self.model.parameters()]
        return {"tensors": len(sizes), "parameters": sum(sizes)}

    def do_steps(self, count: int) -> dict[str, Any]:
        """Return the seconds of each step.

        Steps follow each other as in training, so the next step may hide a rank's delay.
        """
        self.gate.meet()
        times = [time.perf_counter()]
        for _ in range(count):
            self.step()
            times.append(time.perf_counter())
        return {"seconds": [end - start for start, end in itertools.pairwise(times)]}

    def do_state(self) -> dict[str, Any]:
        """Return a digest of the weights, and the peak memory of this process."""
        assert self.model is not None
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
        return {"weights": digest.hexdigest(), "peak_mib": int(peak[1]) / 1024 if peak else 0.0}


def _step(way: Way, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[[], None]:
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
    trained = model
    if way.library == "gloo":
        trained = nn.parallel.DistributedDataParallel(model, **way.options)
    elif way.library == "khorovod":
        import horovod.torch as hvd

        options = dict(way.options)
        if "compression" in options:
            options["compression"] = getattr(hvd.Compression, options["compression"])
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def step() -> None:
        optimizer.zero_grad(set_to_none=not way.keeps_gradients)
        trained(*inputs).backward()
        optimizer.step()

    return step


def join(library: str, rank: int, ranks: int) -> str:
    """Join the other ranks; return the library's name and version."""
    if library == "gloo":
        store = f"file://{os.environ['BENCH_STORE']}"
        torch.distributed.init_process_group("gloo", store, _TIMEOUT, world_size=ranks, rank=rank)
        return f"DistributedDataParallel over Gloo, torch {torch.__version__}"
    if library == "khorovod":
        import horovod
        import horovod.torch as hvd

        hvd.init()
        return f"khorovod {horovod.__version__}, torch {torch.__version__}"
    return f"torch {torch.__version__}"


def main() -> None:
    options = parse_arguments()
    rank = settle(options)
    torch.set_num_threads(1)
    control = socket.socket(socket.AF_UNIX)
    control.connect(options.socket)
    hello = {"rank": rank, "pid": os.getpid(), "library": join(options.backend, rank, options.ranks)}
    gate = Gate(options.gate, rank, options.ranks, crowded=not options.cores)
    serve(control, hello, TrainingWorker(gate, rank))
    # Skip the destructors of reducers, because their peers may have ended; there is nothing to save.
    os._exit(0)


if __name__ == "__main__":
    main()
