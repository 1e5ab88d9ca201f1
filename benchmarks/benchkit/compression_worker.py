# SPDX-License-Identifier: Apache-2.0
"""Rank of benchmarks/compression.py: it builds the ways of one library and makes steps on request.

Run as `python -m benchkit.compression_worker`; benchkit.worker describes the protocol.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchkit.compression_ways import ALONE, BY_NAME, OURS, POWERSGD_RANK, START_AFTER, Way
from benchkit.gate import Gate
from benchkit.training_worker import join
from benchkit.worker import Obedient, parse_arguments, serve, settle

LAYERS, WIDTH = 5, 2_000
_LEARNING_RATE = 1e-4
_WARMUP_STEPS = START_AFTER + 2
_ONE_BUCKET_MB = 1_000


class MissingError(Exception):
    """Error for a way that this version of the library lacks."""


class CompressionWorker(Obedient):
    """Ways of a library in one process: a model for each, whose parameters share memory to save space."""

    def __init__(self, gate: Gate, rank: int, layers: int, width: int, batch: int) -> None:
        self._gate = gate
        torch.manual_seed(0)
        self._layers = [nn.Linear(width, width) for _ in range(layers)]
        torch.manual_seed(1 + rank)
        self._inputs = torch.randn(batch, width)
        self._steps: dict[str, Callable[[], None]] = {}

    def do_build(self, way: str) -> dict[str, Any]:
        """Make some steps in this way to fill buckets and caches; if the way is missing, return why."""
        wanted = BY_NAME[way]
        # Ranks that exchange nothing become different, so they do not use the shared weights.
        model = nn.Sequential(*(_twin(layer, wanted.library == ALONE) for layer in self._layers))
        try:
            step = _step(wanted, model, self._inputs)
        except MissingError as error:
            return {"missing": str(error)}
        for _ in range(_WARMUP_STEPS):
            step()
        self._steps[way] = step
        return {}

    def do_steps(self, way: str, count: int, untimed: int, interface: str) -> dict[str, Any]:
        """Return each step's seconds, and for each step the bytes of this rank and its host, and processor time."""
        step = self._steps[way]
        self._gate.meet()
        for _ in range(untimed):
            step()
        self._gate.meet()
        before = _sent(way), _interface_sent(interface), time.process_time()
        times = [time.perf_counter()]
        for _ in range(count):
            step()
            times.append(time.perf_counter())
        cpu_s = time.process_time()
        self._gate.meet()
        after = _sent(way), _interface_sent(interface), cpu_s
        rank, host, cpu = ((now - then) / count for now, then in zip(after, before, strict=True))
        seconds = [end - begin for begin, end in itertools.pairwise(times)]
        return {"seconds": seconds, "rank_bytes": rank, "host_bytes": host, "cpu_s": cpu}

    def do_weights(self) -> dict[str, Any]:
        """Return a digest of the weights that all exchanging ways share."""
        digest = hashlib.sha256()
        for layer in self._layers:
            digest.update(layer.weight.detach().numpy().tobytes())
        return {"weights": digest.hexdigest(), "parameters": sum(it.weight.numel() for it in self._layers)}


def _twin(layer: nn.Linear, in_own_memory: bool) -> nn.Linear:
    """Return a layer with new parameters that use another layer's memory, or a copy of it."""
    twin = nn.Linear(layer.in_features, layer.out_features, device="meta")
    for name, parameter in layer.named_parameters():
        data = parameter.data.clone() if in_own_memory else parameter.data
        setattr(twin, name, nn.Parameter(data))
    return twin


def _step(way: Way, model: nn.Module, inputs: torch.Tensor) -> Callable[[], None]:
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
    trained = model
    if way.library == OURS:
        optimizer = _distributed(way, optimizer, model)
    elif way.library != ALONE:
        trained = _by_ddp(way.method, model)

    def step() -> None:
        optimizer.zero_grad()
        trained(inputs).square().mean().backward()
        optimizer.step()

    return step


def _distributed(way: Way, optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """Wrap the optimizer; raise MissingError if this version lacks the method."""
    import horovod.torch as hvd

    named = list(model.named_parameters())
    if not way.method:
        return hvd.DistributedOptimizer(optimizer, named)
    method = getattr(hvd.Compression, way.method, None)
    if method is None:
        raise MissingError(f"this version has no hvd.Compression.{way.method}")
    compression = method if way.arguments is None else method(**way.arguments)
    try:
        return hvd.DistributedOptimizer(optimizer, named, compression=compression)
    except ValueError as error:
        raise MissingError(str(error)) from None


def _by_ddp(hook: str, model: nn.Module) -> nn.Module:
    """Return the model under DDP. The ranks' weights are equal already, so DDP does not broadcast them."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    one_bucket = {"bucket_cap_mb": _ONE_BUCKET_MB} if hook == "powersgd" else {}
    ddp = nn.parallel.DistributedDataParallel(model, init_sync=False, **one_bucket)
    if hook == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, POWERSGD_RANK, START_AFTER)

        # Without annotations, because DDP rejects annotations that are strings.
        def in_one_bucket(state, bucket):  # type: ignore[no-untyped-def]
            # DDP forms its final buckets only after the first step.
            if state.iter > 0 and not (bucket.index() == 0 and bucket.is_last()):
                raise RuntimeError("DDP has more than one bucket")
            return powerSGD_hook.powerSGD_hook(state, bucket)

        ddp.register_comm_hook(state, in_one_bucket)
    return ddp


def _sent(way: str) -> int:
    """Return the bytes that this rank has sent over the network, without TCP headers; 0 for other libraries."""
    if BY_NAME[way].library != OURS:
        return 0
    import horovod.torch as hvd

    counters = hvd.counters()
    return (counters["data_bytes_sent"] or 0) + (counters["control_bytes_sent"] or 0)


def _interface_sent(interface: str) -> int:
    """Return the bytes that this host's network interface has sent; 0 without a name."""
    with open("/proc/self/net/dev", encoding="utf-8") as file:
        for line in file:
            name, _, numbers = line.partition(":")
            if name.strip() == interface:
                return int(numbers.split()[8])
    return 0


def main() -> None:
    options = parse_arguments()
    rank = settle(options)
    torch.set_num_threads(1)
    control = socket.socket(socket.AF_UNIX)
    control.connect(options.socket)
    hello = {"rank": rank, "pid": os.getpid(), "library": join(options.backend, rank, options.ranks)}
    gate = Gate(options.gate, rank, options.ranks, crowded=not options.cores)
    layers, width, batch = (int(os.environ[f"BENCH_{name}"]) for name in ("LAYERS", "WIDTH", "BATCH"))
    serve(control, hello, CompressionWorker(gate, rank, layers, width, batch))
    # Skip the destructors of reducers, because their peers may have ended; there is nothing to save.
    os._exit(0)


if __name__ == "__main__":
    main()
