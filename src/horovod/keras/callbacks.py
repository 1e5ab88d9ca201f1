# SPDX-License-Identifier: Apache-2.0
"""Callbacks for model.fit of Keras; horovod._keras.shared_callbacks documents their parameters."""

from __future__ import annotations

import keras

from horovod._keras import shared_callbacks as shared
from horovod._keras.doors import is_keras3


class BroadcastGlobalVariablesCallback(shared.BroadcastGlobalVariables, keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that gives all ranks the weights, the optimizer state and the learning rate of one rank.

    It does so once, before the first step and after the other callbacks' on_train_begin().

    Args:
        root_rank: The rank whose values all ranks receive.
        device: Has no effect.
        local_variables: Variables that stay as they are on each rank.

    Example:
        >>> callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        >>> callbacks = [callback]  # for model.fit(..., callbacks=callbacks)
    """

    keras = keras


class MetricAverageCallback(shared.MetricAverage, keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that averages the metrics of an epoch over all ranks.

    Pass it before callbacks that decide by a metric. All ranks need the same metrics.

    Args:
        device: Has no effect.

    Example:
        >>> callback = hvd.callbacks.MetricAverageCallback()
        >>> callbacks = [callback]  # for model.fit(..., callbacks=callbacks)
    """

    keras = keras


class LearningRateScheduleCallback(shared.LearningRateSchedule, keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that sets the learning rate to `initial_lr * multiplier(epoch)`.

    Args:
        initial_lr: The learning rate to begin with.
        multiplier: A function of the epoch. A number m stands for m ** (epoch - start_epoch).
        start_epoch: The first epoch in which it sets the learning rate.
        end_epoch: The first epoch in which it no longer does. By default it never ends.
        staircase: Change the rate at the beginning of an epoch, instead of with each batch.
        momentum_correction: Scale the optimizer's momentum with the learning rate.
        steps_per_epoch: Number of batches of an epoch. By default what model.fit() knows.

    Raises:
        ValueError: `initial_lr` is None, or the number of batches of an epoch is needed and not known.

    Example:
        >>> callback = hvd.callbacks.LearningRateScheduleCallback(0.1, multiplier=0.5, start_epoch=10)
        >>> callbacks = [callback]  # for model.fit(..., callbacks=callbacks)
    """

    keras = keras


class LearningRateWarmupCallback(shared.LearningRateWarmup, keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that raises the learning rate with each batch, from `initial_lr / hvd.size()` to `initial_lr`.

    Args:
        initial_lr: The learning rate after the warm-up.
        warmup_epochs: Number of epochs until the rate is `initial_lr`.
        momentum_correction: Scale the optimizer's momentum with the learning rate.
        steps_per_epoch: Number of batches of an epoch. By default what model.fit() knows.
        verbose: Print a line when the warm-up has ended.

    Example:
        >>> callback = hvd.callbacks.LearningRateWarmupCallback(0.1 * hvd.size(), warmup_epochs=3)
        >>> callbacks = [callback]  # for model.fit(..., callbacks=callbacks)
    """

    keras = keras


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """ModelCheckpoint of the best model, whose `filepath` is set later.

    Args:
        monitor: As in keras.callbacks.ModelCheckpoint.
        verbose: As in keras.callbacks.ModelCheckpoint.
        mode: As in keras.callbacks.ModelCheckpoint.
        save_freq: As in keras.callbacks.ModelCheckpoint.

    Example:
        >>> checkpoint = hvd.callbacks.BestModelCheckpoint(monitor='loss')
        >>> checkpoint.filepath = 'best.keras'
    """

    def __init__(
        self, monitor: str = "val_loss", verbose: int = 0, mode: str = "auto", save_freq: str | int = "epoch"
    ) -> None:
        nowhere = ".keras" if is_keras3(keras) else None  # Keras 3 requires a path with a known suffix
        super().__init__(
            filepath=nowhere, monitor=monitor, verbose=verbose, save_best_only=True, mode=mode, save_freq=save_freq
        )
        self.filepath = None


class DiLoCoCallback(shared.DiLoCo, keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that lets each rank train alone and exchanges weights in rounds, with an outer Nesterov step.

    Compile the model with the optimizer itself, not with hvd.DistributedOptimizer. Only trainable weights are
    exchanged. steps_per_execution must divide `every`. Save state_dict() beside the model.

    Args:
        outer: Rule by which the global weights follow the workers' average: a dict or an optimizer such as
            torch.optim.SGD with lr, momentum and nesterov. By default lr=0.7, momentum=0.9 and nesterov=True.
        every: Number of inner steps after which each fragment is exchanged. Give this or `every_seconds`.
        every_seconds: Number of seconds after which each fragment is exchanged. Workers are weighted by the steps that
            they made.
        fragments: Number of parts of the model that are exchanged one after the other.
        delay: Number of inner steps that a worker makes during an exchange, before it merges the result.
        merge: Share of the worker's own weights when it merges, at least 0 and below 1.
        wire: Format of values on the wire: 'fp32', 'bf16', 'int8' or 'int4'.
        process_set: The ranks that take part. By default all ranks of the job.
        deadline_s: Seconds after the first worker is ready at which an exchange begins without the late workers.

    Raises:
        ValueError: An argument is not valid, or a weight has a dtype that cannot be averaged.

    Example:
        >>> callback = hvd.callbacks.DiLoCoCallback(every=50)
        >>> callbacks = [callback]  # for model.fit(..., callbacks=callbacks)
    """

    keras = keras


class LocalSGDCallback(shared.LocalSGD, keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that lets each rank train alone and averages the weights in rounds.

    Compile the model with the optimizer itself, not with hvd.DistributedOptimizer. Only trainable weights are
    exchanged. steps_per_execution must divide `every`. Save state_dict() beside the model.

    Args:
        every: Number of inner steps after which each fragment is exchanged. Give this or `every_seconds`.
        every_seconds: Number of seconds after which each fragment is exchanged. Workers are weighted by the steps that
            they made.
        fragments: Number of parts of the model that are exchanged one after the other.
        delay: Number of inner steps that a worker makes during an exchange, before it merges the result.
        merge: Share of the worker's own weights when it merges, at least 0 and below 1.
        wire: Format of values on the wire: 'fp32', 'bf16', 'int8' or 'int4'.
        process_set: The ranks that take part. By default all ranks of the job.
        deadline_s: Seconds after the first worker is ready at which an exchange begins without the late workers.

    Raises:
        ValueError: An argument is not valid, or a weight has a dtype that cannot be averaged.

    Example:
        >>> callback = hvd.callbacks.LocalSGDCallback(every=50)
        >>> callbacks = [callback]  # for model.fit(..., callbacks=callbacks)
    """

    keras = keras
