# SPDX-License-Identifier: Apache-2.0
"""Callbacks for model.fit of tf.keras; horovod._keras.shared_callbacks documents their parameters."""

from __future__ import annotations

from tensorflow import keras

from horovod._keras import shared_callbacks as shared
from horovod._keras.doors import is_keras3
from horovod.common.util import is_version_greater_equal_than as is_version_greater_equal_than


class BroadcastGlobalVariablesCallback(shared.BroadcastGlobalVariables, keras.callbacks.Callback):  # type: ignore[misc]
    """Give all ranks the root's weights and optimizer state before the first step."""

    keras = keras


class MetricAverageCallback(shared.MetricAverage, keras.callbacks.Callback):  # type: ignore[misc]
    """Averages metrics over all ranks; belongs before callbacks that use them (checkpoints, learning rates)."""

    keras = keras


class LearningRateScheduleCallback(shared.LearningRateSchedule, keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to initial_lr * multiplier(epoch); a number m as multiplier means m ** (epoch - start)."""

    keras = keras


class LearningRateWarmupCallback(shared.LearningRateWarmup, keras.callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate with each batch, from initial_lr / size to initial_lr after `warmup_epochs`."""

    keras = keras


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """A ModelCheckpoint of the best model whose filepath is set later, by whoever runs the training."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        suffix = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            filepath=suffix if is_keras3(keras) else None,  # Keras 3 requires a path with a known suffix
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = None
