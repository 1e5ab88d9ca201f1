# SPDX-License-Identifier: Apache-2.0
"""Communication hooks for tests, and optimizers whose gradients are known: sums of ones over ranks."""

from __future__ import annotations

from typing import Any

import torch

import horovod.torch as hvd
from horovod.torch.hooks import Bucket, CommHook, allreduce_hook

Parameters = list[torch.nn.Parameter]


def two_stage_hook(bucket: Bucket) -> Any:
    """Average each rank's chunk on that rank, then gather the chunks, as methods that compress twice do."""
    chunks = bucket.tensor.tensor_split(bucket.size)
    received, _ = yield bucket.alltoall_async(bucket.tensor, [it.numel() for it in chunks], stage="chunks")
    mine = bucket.average(received.view(bucket.size, -1).sum(0))
    gathered = yield bucket.allgather_async(mine, stage="averages")
    return torch.cat(gathered)


def buckets_of(optimizer: Any) -> list[list[str]]:
    """Return the names of the parameters in each bucket."""
    return [[it.name for it in group.gradients] for group in optimizer._reducer._gradients.groups]


def parameters_of(*sizes: int, dtype: torch.dtype = torch.float32) -> Parameters:
    return [torch.nn.Parameter(torch.ones(size, dtype=dtype)) for size in sizes]


def simple(
    parameters: Parameters,
    hook: CommHook | None = allreduce_hook,
    wait: bool = True,
    bucket_bytes: int = 1,
    **options: Any,
) -> Any:
    """Return an optimizer with a learning rate of 1 that sums gradients, with one bucket for each parameter."""
    named = [(f"w{number}", parameter) for number, parameter in enumerate(parameters)]
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(parameters, 1.0), named, op=hvd.Sum, **options)
    if optimizer._reducer is not None:
        optimizer._reducer._wait_in_backward = wait
    if hook is not None:
        hvd.register_comm_hook(optimizer, hook, bucket_bytes=bucket_bytes)
    return optimizer


def backward(*parameters: torch.Tensor, factor: float = 1.0) -> None:
    loss: Any = sum(factor * parameter.sum() for parameter in parameters)
    loss.backward()


def values(parameters: Parameters) -> list[float]:
    """Return the first element of each parameter."""
    return [parameter.flatten()[0].item() for parameter in parameters]


def step(optimizer: Any, *parameters: torch.Tensor) -> None:
    """Make a step with gradients of these parameters."""
    optimizer.zero_grad()
    if parameters:
        backward(*parameters)
    optimizer.step()
