# SPDX-License-Identifier: Apache-2.0
"""Never run: `scripts/lint` has mypy check it, as it would a user's script. An ignore that is not needed fails too."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch

import horovod.torch as hvd
from horovod.torch.hooks import Bucket, allreduce_hook
from horovod.torch.optimizer import DistributedOptimizerProtocol


def clip_and_step(optimizer: DistributedOptimizerProtocol) -> int:
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        pass
    return optimizer.backward_passes_per_step


def train(model: torch.nn.Module) -> None:
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)  # it is one of torch's, too
    clip_and_step(optimizer)
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    scheduler.step()
    clip_and_step(plain)  # type: ignore[arg-type]
    plain.synchronize()  # type: ignore[attr-defined]
    optimizer.synchronise()  # type: ignore[attr-defined]


def half_hook(bucket: Bucket) -> Generator[Any, Any, torch.Tensor]:
    half: torch.Tensor = yield bucket.allreduce_async(bucket.tensor.half())
    return half.float()


def no_hook(bucket: Bucket) -> torch.Tensor:
    return bucket.average(bucket.tensor)


def hooks(optimizer: torch.optim.Optimizer) -> None:
    hvd.register_comm_hook(optimizer, half_hook)
    hvd.register_comm_hook(optimizer, allreduce_hook, bucket_bytes=1 << 20)
    hvd.register_comm_hook(optimizer, no_hook)  # type: ignore[arg-type]
