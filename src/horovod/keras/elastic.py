# SPDX-License-Identifier: Apache-2.0
"""Elastic training with Keras: KerasState, the callbacks that update and commit it, and hvd.elastic.run."""

from __future__ import annotations

from typing import Any

import keras

from horovod._keras import shared_callbacks as shared
from horovod._keras.doors import door_of
from horovod.common.checkpoint import checkpoint as checkpoint

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]

run = door_of(keras).run
TensorFlowKerasState: Any = door_of(keras).State  # Horovod's name for it; the class differs by Keras backend


class KerasState(TensorFlowKerasState):  # type: ignore[misc]
    """State of a training with Keras, for hvd.elastic.run(): model, optimizer and Python values.

    commit() saves all of it; restore() writes what was saved; sync() gives all ranks the variables of rank 0, and the
    values that rank 0 saved last.

    Args:
        model: The model. It must be built, so that it has weights.
        optimizer: The optimizer. By default that of the model.
        **kwargs: Any Python values, such as `epoch` and `batch`, each in the attribute of its name.

    Raises:
        ValueError: The model is not built.

    Example:
        >>> model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        >>> state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


class CommitStateCallback(shared.CommitState, keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that commits the state after batches and after every epoch.

    Pass it to model.fit() last.

    Args:
        state: The elastic state.
        batches_per_commit: Commit after this many batches.

    Example:
        >>> state = hvd.elastic.KerasState(model, batch=0, epoch=0)
        >>> callback = hvd.elastic.CommitStateCallback(state)
    """

    keras = keras


class UpdateBatchStateCallback(shared.UpdateBatchState, keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that keeps `state.batch` at the batch of the epoch.

    After a restart, the first epoch has that many batches fewer.

    Args:
        state: The elastic state.

    Example:
        >>> state = hvd.elastic.KerasState(model, batch=0, epoch=0)
        >>> callback = hvd.elastic.UpdateBatchStateCallback(state)
    """

    keras = keras


class UpdateEpochStateCallback(shared.UpdateEpochState, keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that keeps `state.epoch` at the number of finished epochs.

    Args:
        state: The elastic state.

    Example:
        >>> state = hvd.elastic.KerasState(model, batch=0, epoch=0)
        >>> callback = hvd.elastic.UpdateEpochStateCallback(state)
    """

    keras = keras
