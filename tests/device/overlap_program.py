# SPDX-License-Identifier: Apache-2.0
"""Program of each rank of test_overlap_cuda.py: how long the GPU computes while NCCL runs, by torch's profiler.

Argument: `hvd` for DistributedOptimizer, or `ddp` for DistributedDataParallel over the backend `horovod`.
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import horovod.torch as hvd

WIDTH, LAYERS, BATCH = 4096, 6, 4096  # 64 MB of gradients and some milliseconds for each layer
DEVICE = torch.device("cuda", 0)
Span = tuple[float, float]


def prepare(way: str) -> tuple[Any, Any]:
    torch.manual_seed(1)
    model: Any = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).to(DEVICE)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3)
    if way == "ddp":
        dist.init_process_group("horovod")
        return DistributedDataParallel(model, device_ids=[0]), optimizer
    hvd.init()
    return model, hvd.DistributedOptimizer(optimizer, model.named_parameters())


def union(spans: list[Span]) -> list[Span]:
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def common_us(one: list[Span], other: list[Span]) -> float:
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in other)


def main() -> None:
    torch.cuda.set_device(DEVICE)
    model, optimizer = prepare(sys.argv[1])
    inputs = torch.randn(BATCH, WIDTH, device=DEVICE)

    def step() -> None:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _ in range(2):
            step()
        torch.cuda.synchronize()
    on_gpu = [it for it in profiled.events() if it.device_type == torch.autograd.DeviceType.CUDA]
    kernels = {False: [], True: []}  # type: dict[bool, list[Span]]
    for event in on_gpu:
        kernels["nccl" in event.name.lower()].append((event.time_range.start, event.time_range.end))
    compute, moving = union(kernels[False]), union(kernels[True])
    both = common_us(compute, moving)
    busy = sum(end - begin for begin, end in compute)
    print(f"computing {busy / 1e3:.1f} ms, of these beside NCCL {both / 1e3:.1f} ms", flush=True)
    if sys.argv[1] == "ddp":
        dist.destroy_process_group()
    else:
        hvd.shutdown()


main()
