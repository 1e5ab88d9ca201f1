# SPDX-License-Identifier: Apache-2.0
"""Compared ways to train the small language model: synchronous, averaged now and then, and DiLoCo."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchkit.language_model import LanguageModel, loss_of

EVERY = 50  # inner steps of a round
OURS, PEER = "khorovod", "torch"
_POWERSGD_RANK, _DENSE_STEPS = 4, 10
_SYNCHRONOUS_STEPS = 100  # PostLocalSGDOptimizer begins with so many synchronous steps


@dataclass(frozen=True)
class Way:
    """Way to train. `build`: see trainer_of(). `rounds`: it exchanges weights only after every EVERY steps."""

    name: str
    library: str
    build: str
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    rounds: bool = True
    only_slow: bool = False  # measured over slow links alone


SYNCHRONOUS = Way("synchronous", OURS, "distributed", rounds=False)
AVERAGING = Way("LocalSGD", OURS, "local_sgd")
FP32 = Way("DiLoCo fp32", OURS, "diloco", {"wire": "fp32"})
INT4 = Way("DiLoCo int4", OURS, "diloco", {"wire": "int4"})
WAYS = (
    SYNCHRONOUS,
    AVERAGING,
    FP32,
    INT4,
    Way("torch PostLocalSGDOptimizer", PEER, "post_local_sgd"),
    Way("torch PeriodicModelAverager", PEER, "periodic"),
    Way("PowerSGD", OURS, "powersgd", rounds=False, only_slow=True),
    Way("torch DDP", PEER, "ddp", rounds=False, only_slow=True),
)
BY_NAME = {way.name: way for way in WAYS}
Step = Callable[[torch.Tensor, float], None]


class Trainer:
    """Model with its optimizer: `step` makes an inner step at a learning rate, `finish` ends the last round."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def step(self, text: torch.Tensor, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        loss_of(self.model, text).backward()
        self.optimizer.step()

    def finish(self) -> None:
        """Wait for a round that is still open; a way without rounds does nothing."""
        finish = getattr(self.optimizer, "finish", None)
        if finish is not None:
            finish()


class Averaged(Trainer):
    """Trainer whose averager counts the steps itself; the end averages once more, so that workers are equal."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, averager: Any) -> None:
        super().__init__(model, optimizer)
        self._averager = averager

    def step(self, text: torch.Tensor, rate: float) -> None:
        super().step(text, rate)
        if self._averager is not None:
            self._averager.average_parameters(self.model.parameters())

    def finish(self) -> None:
        from torch.distributed.algorithms.model_averaging.utils import average_parameters

        average_parameters(self.model.parameters(), torch.distributed.group.WORLD)


def trainer_of(way: Way, model: LanguageModel) -> Trainer:
    """Return the trainer of a way; its library must have started."""
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    builders: dict[str, Callable[..., Trainer]] = {
        "distributed": _distributed,
        "powersgd": _powersgd,
        "local_sgd": _local_sgd,
        "diloco": _diloco,
        "ddp": _ddp,
        "post_local_sgd": _post_local_sgd,
        "periodic": _periodic,
    }
    return builders[way.build](model, inner, **way.arguments)


def start(way: Way, folder: Path) -> None:
    """Start the way's library in this rank."""
    if way.library == OURS:
        import horovod.torch as hvd

        hvd.init()
    else:
        rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
        store = torch.distributed.FileStore(str(folder / "store"), size)
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)


def _distributed(model: LanguageModel, inner: torch.optim.Optimizer) -> Trainer:
    import horovod.torch as hvd

    return Trainer(model, hvd.DistributedOptimizer(inner, list(model.named_parameters())))


def _powersgd(model: LanguageModel, inner: torch.optim.Optimizer) -> Trainer:
    import horovod.torch as hvd

    method = hvd.Compression.powersgd(rank=_POWERSGD_RANK, start_after=_DENSE_STEPS)
    return Trainer(model, hvd.DistributedOptimizer(inner, list(model.named_parameters()), compression=method))


def _local_sgd(model: LanguageModel, inner: torch.optim.Optimizer) -> Trainer:
    import horovod.torch as hvd

    return Trainer(model, hvd.LocalSGD(inner, every=EVERY))


def _diloco(model: LanguageModel, inner: torch.optim.Optimizer, wire: str) -> Trainer:
    import horovod.torch as hvd

    return Trainer(model, hvd.DiLoCo(inner, every=EVERY, wire=wire))


def _ddp(model: LanguageModel, inner: torch.optim.Optimizer) -> Trainer:
    return Trainer(torch.nn.parallel.DistributedDataParallel(model, init_sync=False), inner)


def _post_local_sgd(model: LanguageModel, inner: torch.optim.Optimizer) -> Trainer:
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as hooks
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    ddp = torch.nn.parallel.DistributedDataParallel(model, init_sync=False)
    own = [torch.distributed.new_group([rank]) for rank in range(torch.distributed.get_world_size())]
    state = hooks.PostLocalSGDState(
        process_group=None, subgroup=own[torch.distributed.get_rank()], start_localSGD_iter=_SYNCHRONOUS_STEPS
    )
    ddp.register_comm_hook(state, hooks.post_localSGD_hook)
    averager = PeriodicModelAverager(period=EVERY, warmup_steps=_SYNCHRONOUS_STEPS)
    return Averaged(ddp, PostLocalSGDOptimizer(inner, averager), None)


def _periodic(model: LanguageModel, inner: torch.optim.Optimizer) -> Trainer:
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    return Averaged(model, inner, PeriodicModelAverager(period=EVERY, warmup_steps=0))
