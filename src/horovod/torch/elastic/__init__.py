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
    """Decorate a training function, so that training continues from the last commit when workers come or go.

    Before the function is called, all ranks receive the state of rank 0, unless workers have only left. If a rank is
    lost, the state is restored and the function is called again. Run no collective before the decorated function,
    because a new worker would run it alone.

    Args:
        func: A function whose first argument is the state, such as `train(state)`.

    Returns:
        The decorated function. It returns what `func` returns.

    Raises:
        HorovodMismatchError: The decorated function: the ranks disagree, which a restart cannot mend.
        HorovodInitializationError: The decorated function: the remaining ranks could not meet again.
        HorovodCheckpointError: The decorated function: training cannot continue from its checkpoints.

    Example:
        >>> train = hvd.elastic.run(lambda state: state.step + 1)
        >>> train(hvd.elastic.TorchState(step=0))  # on 2 ranks: 1
    """
    return run_fn(func, _reset)


def _reset() -> None:
    shutdown()
    init()
