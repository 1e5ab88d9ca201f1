# SPDX-License-Identifier: Apache-2.0
"""Callbacks of both Keras APIs. Each API derives its callback from one of these and keras.callbacks.Callback.

The derived class names its keras module in the class body; modules `callbacks` and `elastic` implement the callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from horovod._keras import callbacks, elastic, local_sgd
from horovod.common.local_sgd import AVERAGE, Options, outer_of
from horovod.common.process_sets import ProcessSet, global_process_set


class BroadcastGlobalVariables(callbacks.BroadcastGlobalVariablesCallbackImpl):
    """Callback that gives all ranks the root's weights and optimizer state before the first step."""

    keras: Any

    def __init__(self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None) -> None:
        super().__init__(self.keras, root_rank, device)
        for variable in local_variables or ():
            self.register_local_var(variable)


class MetricAverage(callbacks.MetricAverageCallbackImpl):
    """Callback that averages metrics over all ranks; pass it before callbacks that use metrics."""

    keras: Any

    def __init__(self, device: str = "") -> None:
        super().__init__(self.keras, device)


class LearningRateSchedule(callbacks.LearningRateScheduleCallbackImpl):
    """Callback that sets the learning rate to initial_lr * multiplier(epoch).

    A number m as multiplier means m ** (epoch - start_epoch).
    """

    keras: Any

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
            self.keras, initial_lr, multiplier, start_epoch, end_epoch, staircase, momentum_correction, steps_per_epoch
        )


class LearningRateWarmup(callbacks.LearningRateWarmupCallbackImpl):
    """Callback that raises the learning rate with each batch, from initial_lr / size to initial_lr."""

    keras: Any

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(self.keras, initial_lr, warmup_epochs, momentum_correction, steps_per_epoch, verbose)


class CommitState(elastic.CommitStateCallbackImpl):
    """Callback that commits the state after every `batches_per_commit` batches and after every epoch; pass it last."""

    keras: Any

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__(self.keras, state, batches_per_commit)


class UpdateBatchState(elastic.UpdateBatchStateCallbackImpl):
    """Callback that sets `state.batch` to the batch of the epoch."""

    keras: Any

    def __init__(self, state: Any) -> None:
        super().__init__(self.keras, state)


class UpdateEpochState(elastic.UpdateEpochStateCallbackImpl):
    """Callback that sets `state.epoch` to the number of finished epochs."""

    keras: Any

    def __init__(self, state: Any) -> None:
        super().__init__(self.keras, state)


class DiLoCo(local_sgd.RoundsCallbackImpl):
    """Callback that lets each rank train alone and exchanges weights in rounds, with an outer Nesterov step."""

    keras: Any

    def __init__(
        self,
        outer: Any = None,
        every: int | None = None,
        every_seconds: float | None = None,
        fragments: int = 1,
        delay: int = 0,
        merge: float = 0.0,
        wire: str = "fp32",
        process_set: ProcessSet = global_process_set,
        deadline_s: float = 30.0,
    ) -> None:
        rule = outer_of(outer)
        options = Options(
            every, every_seconds, fragments, delay, merge, wire, rule, process_set=process_set, deadline_s=deadline_s
        )
        super().__init__(self.keras, options)


class LocalSGD(local_sgd.RoundsCallbackImpl):
    """Callback that lets each rank train alone and averages the weights in rounds."""

    keras: Any

    def __init__(
        self,
        every: int | None = None,
        every_seconds: float | None = None,
        fragments: int = 1,
        delay: int = 0,
        merge: float = 0.0,
        wire: str = "fp32",
        process_set: ProcessSet = global_process_set,
        deadline_s: float = 30.0,
    ) -> None:
        options = Options(
            every, every_seconds, fragments, delay, merge, wire, AVERAGE, process_set=process_set, deadline_s=deadline_s
        )
        super().__init__(self.keras, options)
