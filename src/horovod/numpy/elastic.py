# SPDX-License-Identifier: Apache-2.0
"""Elastic training with NumPy: hvd.elastic.run, and a state of arrays and plain Python values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from horovod.common.checkpoint import checkpoint as checkpoint
from horovod.common.dtypes import ID_BY_NAME
from horovod.common.elastic import ObjectState, run_fn
from horovod.numpy.functions import broadcast_object, broadcast_parameters
from horovod.numpy.mpi_ops import init, rank, shutdown

__all__ = ["NumpyState", "run"]


class NumpyState(ObjectState):
    """Every keyword becomes an attribute: arrays, lists and dicts of them, or any other Python values.

    `sync` sends what rank 0 *saved* last: arrays as they are, everything else pickled.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(lambda value: broadcast_object(value, 0, "NumpyState"), rank, **kwargs)

    def sync(self) -> None:
        saved = self._saved_state
        # Rank 0 sends the shapes and dtypes of its arrays, because a new worker's arrays may differ.
        forms = {name: (value.shape, value.dtype) for name, value in saved.items() if _is_array(value)}
        others = {name: value for name, value in saved.items() if name not in forms}
        forms, others = self._bcast_object((forms, others))
        # Receive into new memory, because the saved arrays must stay intact if the sync fails, and while a thread
        # writes them.
        arrays = {name: saved[name] if self._rank() == 0 else np.empty(*form) for name, form in forms.items()}
        broadcast_parameters(arrays, 0)
        received = {**arrays, **others}
        self._values.put({name: received[name] for name in self._names})
        ObjectState.restore(self)


def _is_array(value: Any) -> bool:
    return type(value) is np.ndarray and value.dtype.isnative and value.dtype.name in ID_BY_NAME


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function `func(state, ...)`: it goes on from the last commit when workers come or go."""
    return run_fn(func, _reset)


def _reset() -> None:
    shutdown()
    init()
