# SPDX-License-Identifier: Apache-2.0
"""Compared ways to make a training step on several ranks, and the launch of their ranks."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchkit.libraries import Gloo, Khorovod
from benchkit.world import World

BOUND = "independent"


@dataclass(frozen=True)
class Way:
    """Way to make a training step. `options` are arguments of DistributedDataParallel or DistributedOptimizer."""

    name: str
    library: str
    options: dict[str, Any] = field(default_factory=dict)
    # Zero_grad(set_to_none=False), so that autograd adds to memory that is already allocated.
    keeps_gradients: bool = False


WAYS = (
    Way(BOUND, "none"),
    Way("ddp", "gloo"),
    Way("ddp, bucket view", "gloo", {"gradient_as_bucket_view": True}, keeps_gradients=True),
    Way("ddp, static graph", "gloo", {"static_graph": True}),
    Way("khorovod", "khorovod"),
    Way("khorovod, bucket view", "khorovod", {"gradient_as_bucket_view": True}, keeps_gradients=True),
    Way("khorovod, fp16", "khorovod", {"compression": "fp16"}),
    Way("khorovod, bf16", "khorovod", {"compression": "bf16"}),
)
BY_NAME = {way.name: way for way in WAYS}
QUICK = (BOUND, "ddp", "khorovod", "khorovod, bucket view")


class Alone(World):
    """World of processes that do not communicate, as a lower bound."""

    def launch(self, worker_arguments: list[str]) -> None:
        for rank in range(self.ranks):
            self.spawn_rank(rank, "none", worker_arguments, {})


def world_of(way: Way, ranks: int, cores: Sequence[int | str], transport: str) -> World:
    world: World
    if way.library == "none":
        world = Alone(way.name, ranks, cores, "none")
    else:
        world = {"gloo": Gloo, "khorovod": Khorovod}[way.library](ranks, cores, transport)
    world.name, world.worker = way.name, "benchkit.training_worker"
    return world


def unavailable() -> str | None:
    """Return why nothing can be measured here, or None."""
    missing = [name for name in ("torch", "horovod") if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else None
