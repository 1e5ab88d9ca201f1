# SPDX-License-Identifier: Apache-2.0
"""Rank of benchmarks/gpu.py: it runs measurements and prints the results as lines of JSON.

Arguments: a way, then any of `allreduce:BYTES`, `groups:BYTES`, `messages:BYTES` and `step:MODEL`. The ways are
khorovod; buckets and kept, which add bucket views; gloo, nccl and backend, which are torch.distributed over Gloo, NCCL
and Khorovod; and alone. All ranks use one GPU; they begin when they read a line from standard input.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Tensor = torch.Tensor
Measured = dict[str, "float | str"]
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", 0)
# Slow ways use fewer steps, because their times need less precision.
SLOW = sys.argv[1] in ("gloo", "nccl") or os.environ.get("HOROVOD_GPU_TRANSPORT") == "nccl"
STEPS, ROUNDS, WARM_STEPS = (3 if SIZE > 2 else 5, 2, 2) if SLOW else (10, 3, 5)
IN_A_ROW = 5 if SLOW else 20
GROUP = 8  # tensors in a group


class Alone:
    """Way without communication, with which the others are compared."""

    keeps_gradients = False  # True if gradients stay allocated between steps

    def meet(self) -> None:
        dist.barrier()

    def allreduce(self, tensor: Tensor) -> None:
        raise NotImplementedError

    def allreduce_group(self, tensors: list[Tensor]) -> None:
        raise NotImplementedError

    def wrap(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        return model, optimizer

    def end(self) -> None:
        dist.destroy_process_group()


class Distributed(Alone):
    def allreduce(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor)

    def wrap(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, device_ids=[0]), optimizer


class Khorovod(Alone):
    def __init__(self, buckets: bool = False, keeps_gradients: bool = False) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        self._buckets, self.keeps_gradients = buckets, keeps_gradients
        hvd.init()

    def meet(self) -> None:
        self._hvd.barrier()

    def allreduce(self, tensor: Tensor) -> None:
        self._hvd.allreduce_(tensor, op=self._hvd.Sum, name="measured")

    def allreduce_group(self, tensors: list[Tensor]) -> None:
        self._hvd.grouped_allreduce_(tensors, op=self._hvd.Sum, name=f"group {tensors[0].numel()}")

    def wrap(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        optimizer = self._hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), gradient_as_bucket_view=self._buckets
        )
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, optimizer

    def end(self) -> None:
        self._hvd.shutdown()


def make_way(name: str) -> Alone:
    if name in ("khorovod", "buckets", "kept"):
        return Khorovod(buckets=name != "khorovod", keeps_gradients=name == "kept")
    dist.init_process_group({"alone": "gloo", "backend": "horovod"}.get(name, name))
    return Alone() if name == "alone" else Distributed()


def measure_allreduce(way: Alone, count: int) -> Measured:
    """Return the seconds from a call until the device is done, and those of each of several calls in a row."""
    tensor = torch.zeros(count // 4, device=DEVICE)
    for _ in range(5):
        way.allreduce(tensor)
    torch.cuda.synchronize()

    def measure(calls: int) -> float:
        way.meet()
        began = time.perf_counter()
        for _ in range(calls):
            way.allreduce(tensor)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / calls

    single = [measure(1) for _ in range(10 if SLOW else 100 if count <= 1 << 20 else 30)]
    in_a_row = [measure(IN_A_ROW) for _ in range(3)]
    return {"bytes": count, "median_s": statistics.median(single), "in_a_row_s": statistics.median(in_a_row)}


def measure_groups(way: Alone, count: int) -> Measured:
    """Return the seconds of each of several grouped allreduces in a row, of tensors of `count` bytes each."""
    tensors = [torch.zeros(count // 4, device=DEVICE) for _ in range(GROUP)]
    for _ in range(2):
        way.allreduce_group(tensors)
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        way.meet()
        began = time.perf_counter()
        for _ in range(IN_A_ROW):
            way.allreduce_group(tensors)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) / IN_A_ROW)
    return {"bytes": count, "tensors": GROUP, "median_s": statistics.median(times)}


def measure_messages(way: Alone, count: int) -> Measured:
    """Return the seconds from a send until the other rank's device has the tensor: half of a round trip."""
    tensor = torch.zeros(count // 4, device=DEVICE)

    def go_round() -> float:
        began = time.perf_counter()
        for sends in (RANK == 0, RANK == 1):
            if sends:
                dist.send(tensor, 1 - RANK)
            else:
                dist.recv(tensor, 1 - RANK)
                torch.cuda.synchronize()
        return (time.perf_counter() - began) / 2

    for _ in range(3):
        go_round()
    way.meet()
    return {"bytes": count, "median_s": statistics.median(go_round() for _ in range(10 if SLOW else 30))}


class Block(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, 2)
        )
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(torch.nn.Module):
    """Small model of GPT-2, with 124 million parameters."""

    def __init__(self, words: int = 50257, length: int = 1024, width: int = 768) -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(words, width), torch.nn.Embedding(length, width)
        self.blocks = torch.nn.Sequential(*(Block(width, 12) for _ in range(12)))
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        return torch.nn.functional.linear(self.norm(self.blocks(x)), self.words.weight)


def make_problem(model: str) -> tuple[torch.nn.Module, Callable[[Any], Tensor]]:
    if model == "resnet50":
        from torchvision.models import resnet50  # type: ignore[import-untyped]

        images, labels = torch.randn(32, 3, 224, 224, device=DEVICE), torch.randint(1000, (32,), device=DEVICE)
        return resnet50().to(DEVICE), lambda net: torch.nn.functional.cross_entropy(net(images), labels)
    tokens = torch.randint(50257, (8, 513), device=DEVICE)

    def loss(net: Any) -> Tensor:
        found = net(tokens[:, :-1])
        return torch.nn.functional.cross_entropy(found.flatten(0, 1), tokens[:, 1:].flatten())

    return Gpt().to(DEVICE), loss


def measure_step(way: Alone, name: str) -> Measured:
    torch.manual_seed(RANK)
    model, loss = make_problem(name)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    model, optimizer = way.wrap(model, optimizer)

    def make_step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            value = loss(model)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not way.keeps_gradients)

    for _ in range(WARM_STEPS):
        make_step()
    times = []
    for _ in range(ROUNDS):
        # As in training, do not wait for the device after each step.
        torch.cuda.synchronize()
        way.meet()
        began = time.perf_counter()
        for _ in range(STEPS):
            make_step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) / STEPS)
    return {"model": name, "median_s": statistics.median(times)}


MEASURES: dict[str, Callable[[Alone, str], Measured]] = {
    "allreduce": lambda way, size: measure_allreduce(way, int(size)),
    "groups": lambda way, size: measure_groups(way, int(size)),
    "messages": lambda way, size: measure_messages(way, int(size)),
    "step": measure_step,
}


def main() -> None:
    name, *wanted = sys.argv[1:]
    if any(one.startswith("step:resnet") for one in wanted):
        importlib.import_module("torchvision.models")
    importlib.import_module("horovod.torch")
    print("loaded", flush=True)
    sys.stdin.readline()
    torch.cuda.set_device(DEVICE)
    way = make_way(name)
    for one in wanted:
        what, _, which = one.partition(":")
        measured = MEASURES[what](way, which)
        print(json.dumps({"way": name, "ranks": SIZE, "what": what, **measured}), flush=True)
    way.meet()
    way.end()


main()
