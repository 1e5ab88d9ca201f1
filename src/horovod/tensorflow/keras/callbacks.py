# SPDX-License-Identifier: Apache-2.0
"""The callbacks for model.fit of tf.keras; what they do is written in horovod._keras.callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tensorflow import keras

from horovod._keras import callbacks as _impl
from horovod._keras.doors import is_keras3
from horovod.common.util import is_version_greater_equal_than as is_version_greater_equal_than


class BroadcastGlobalVariablesCallback(_impl.BroadcastGlobalVariablesCallbackImpl, keras.callbacks.Callback):  # type: ignore[misc]
    """Gives all ranks the root's weights and optimizer state at the end of the first batch."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None) -> None:
        super().__init__(keras, root_rank, device)
        for variable in local_variables or ():
            self.register_local_var(variable)


class MetricAverageCallback(_impl.MetricAverageCallbackImpl, keras.callbacks.Callback):  # type: ignore[misc]
    """Averages metrics over all ranks; belongs before callbacks that use them (checkpoints, learning rates)."""

    def __init__(self, device: str = "") -> None:
        super().__init__(keras, device)


class LearningRateScheduleCallback(_impl.LearningRateScheduleCallbackImpl, keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to initial_lr * multiplier(epoch); a number m as multiplier means m ** (epoch - start)."""

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__(
            keras, initial_lr, multiplier, start_epoch, end_epoch, staircase, momentum_correction, steps_per_epoch
        )


class LearningRateWarmupCallback(_impl.LearningRateWarmupCallbackImpl, keras.callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate with each batch, from initial_lr / size to initial_lr after `warmup_epochs`."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(keras, initial_lr, warmup_epochs, momentum_correction, steps_per_epoch, verbose)


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
            filepath=suffix if is_keras3(keras) else None,  # Keras 3 looks at the suffix
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = None
