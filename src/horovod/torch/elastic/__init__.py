# SPDX-License-Identifier: Apache-2.0
"""Elastic training with PyTorch: hvd.elastic.run, TorchState and ElasticSampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod.common.checkpoint import checkpoint as checkpoint
from horovod.common.elastic import run_fn
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState
from horovod.torch.mpi_ops import init, shutdown

__all__ = ["ElasticSampler", "TorchState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function `func(state, ...)`: it goes on from the last commit when workers come or go."""
    return run_fn(func, _reset)


def _reset() -> None:
    shutdown()
    init()
