# SPDX-License-Identifier: Apache-2.0
"""Never run: `scripts/lint` has mypy check it, as it would a user's script. An ignore that is not needed fails too."""

from __future__ import annotations

import torch

import horovod.torch as hvd
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
