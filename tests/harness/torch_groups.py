# SPDX-License-Identifier: Apache-2.0
"""Helpers for bodies of torch.distributed tests: a default process group while a body runs."""

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
    """Yield (rank, size) of a new default group; the rendezvous works as under horovodrun."""
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timeout)
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()
        gc.collect()


def rank_tensor(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a rank's input: small integers, so that every dtype and every order of addition gives exact sums."""
    generator = torch.Generator().manual_seed(1000 + rank)
    values = torch.randint(0, 4, shape, generator=generator)
    if dtype == torch.bool:
        return values > 1
    if dtype.is_complex:
        return torch.complex(values.double(), values.double() + rank).to(dtype)
    return values.to(dtype)


def new_name(module: object, *names: str) -> object:
    """Return the object under the first of several names that this version of torch has; older names may warn."""
    return next(getattr(module, name) for name in names if hasattr(module, name))
