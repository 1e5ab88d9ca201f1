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
    """The state of a training: model, optimizer (unless it is the model's), and any Python values as keywords."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)


class CommitStateCallback(shared.CommitState, keras.callbacks.Callback):  # type: ignore[misc]
    """Commits the state after every `batches_per_commit` batches and after every epoch. Pass it to fit last."""

    keras = keras


class UpdateBatchStateCallback(shared.UpdateBatchState, keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps `state.batch` at the batch of the epoch."""

    keras = keras


class UpdateEpochStateCallback(shared.UpdateEpochState, keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps `state.epoch` at the number of epochs that are done."""

    keras = keras
