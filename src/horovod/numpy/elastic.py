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
    """State of a training with NumPy, for hvd.elastic.run().

    Every keyword becomes an attribute. commit() saves all values. sync() gives all ranks what rank 0 saved last; arrays
    are sent as they are, other values are pickled.

    Args:
        **kwargs: Arrays, lists and dicts of them, or any other Python values.

    Raises:
        TypeError: A value cannot be copied.

    Example:
        >>> state = hvd.elastic.NumpyState(weights=np.zeros(2), step=0)
        >>> state.step += 1
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
        >>> train(hvd.elastic.NumpyState(step=0))  # on 2 ranks: 1
    """
    return run_fn(func, _reset)


def _reset() -> None:
    shutdown()
    init()
