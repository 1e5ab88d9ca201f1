# SPDX-License-Identifier: Apache-2.0
"""For the bodies of torch.distributed tests: a default process group for as long as a body runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

import horovod.torch.distributed  # noqa: F401 - registers the backend
from harness.worlds import on_all_ranks

LIMIT = timedelta(seconds=20)
on_torch_ranks = partial(on_all_ranks, limit_s=120)  # the first body waits until every rank has imported torch


@contextmanager
def process_group(backend: str = "horovod", timeout: timedelta = LIMIT) -> Iterator[tuple[int, int]]:
    """(rank, size) in a new default group; the ranks find each other as under horovodrun."""
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timeout)
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()
        gc.collect()


def rank_tensor(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What a rank contributes: small whole numbers, so that every type and every order of addition is exact."""
    generator = torch.Generator().manual_seed(1000 + rank)
    values = torch.randint(0, 4, shape, generator=generator)
    if dtype == torch.bool:
        return values > 1
    if dtype.is_complex:
        return torch.complex(values.double(), values.double() + rank).to(dtype)
    return values.to(dtype)


def new_name(module: object, *names: str) -> object:
    """The first of several names that this version of torch has; the older ones warn in newer versions."""
    return next(getattr(module, name) for name in names if hasattr(module, name))
