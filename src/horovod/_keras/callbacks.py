# SPDX-License-Identifier: Apache-2.0
"""Base classes of the callbacks for distributed training; horovod.keras and tf.keras derive Keras callbacks from them.

As in Horovod, `backend` is the first argument, but here it is the keras module itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod._keras.initial_broadcast import (
    BroadcastGlobalVariablesCallbackImpl as BroadcastGlobalVariablesCallbackImpl,
)
from horovod._keras.undistributed import Checked
from horovod.common.context import default_context
from horovod.common.objects import allgather_object


class MetricAverageCallbackImpl(Checked):
    """Callback that averages metrics over all ranks at the end of an epoch; later callbacks see the averages."""

    def __init__(self, backend: Any, device: str = "", *args: Any) -> None:
        super().__init__(*args)
        self.keras = backend

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        mine = {name: float(value) for name, value in sorted((logs or {}).items())}
        everybody = allgather_object(mine, "MetricAverageCallback")
        for rank, other in enumerate(everybody):
            if other.keys() != mine.keys():
                raise ValueError(
                    f"Rank {default_context.topology.rank} has the metrics {list(mine)} and rank {rank} has "
                    f"{list(other)}: all ranks need the same ones, so pass validation data to all of them or to none"
                )
        for name in mine:
            logs[name] = sum(other[name] for other in everybody) / len(everybody)


class LearningRateScheduleCallbackImpl(Checked):
    """Callback that sets the learning rate to initial_lr * multiplier(epoch).

    A number m as multiplier means m ** (epoch - start_epoch).
    """

    params: dict[str, Any]

    def __init__(
        self,
        backend: Any,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        *args: Any,
    ) -> None:
        super().__init__(*args)
        if initial_lr is None:
            raise ValueError("initial_lr is missing: pass the learning rate that the multiplier applies to")
        self.keras = backend
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch: int = 0
        if callable(multiplier):
            self.staircase, self.multiplier = staircase, multiplier
        else:
            constant = multiplier
            self.staircase = True
            self.multiplier = lambda epoch: constant ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        if self.staircase or self.steps_per_epoch:
            return
        self.steps_per_epoch = (self.params or {}).get("steps")
        if not self.steps_per_epoch:
            raise ValueError(
                f"{type(self).__name__} does not know how many batches an epoch has: pass it steps_per_epoch"
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._is_mine():
            return
        if self.staircase:
            if batch == 0:
                self._adjust(self.current_epoch)
        else:
            self._adjust(self.current_epoch + batch / (self.steps_per_epoch or 1))

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        pass

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = self._read()

    def _is_mine(self) -> bool:
        return self.current_epoch >= self.start_epoch and (
            self.end_epoch is None or self.current_epoch < self.end_epoch
        )

    def _read(self) -> float:
        return _number(self.model.optimizer.learning_rate)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old, new = _number(optimizer.learning_rate), self.initial_lr * self.multiplier(epoch)
        if old == new:
            return
        _set_learning_rate(optimizer, new)
        if self.momentum_correction and old > 0:
            for velocity in _velocities(optimizer):
                velocity.assign(velocity * (new / old))


class LearningRateWarmupCallbackImpl(LearningRateScheduleCallbackImpl):
    """Callback that raises the learning rate with each batch, from initial_lr / size to initial_lr."""

    def __init__(
        self,
        backend: Any,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        *args: Any,
    ) -> None:
        def multiplier(epoch: float) -> float:
            size = default_context.topology.size
            epoch += 1.0 / (self.steps_per_epoch or 1)  # the last batch of the warm-up gets the full rate
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        super().__init__(
            backend,
            initial_lr,
            multiplier,
            0,
            warmup_epochs,  # type: ignore[arg-type]
            False,
            momentum_correction,
            steps_per_epoch,
            *args,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._read():g}.")


def _number(value: Any) -> float:
    """Return a learning rate as a float, from any kind of variable or tensor."""
    value = value() if callable(value) else value
    value = value.numpy() if hasattr(value, "numpy") else value
    return float(value)


def _set_learning_rate(optimizer: Any, rate: float) -> None:
    try:
        optimizer.learning_rate = rate
    except (TypeError, AttributeError) as error:
        raise ValueError(
            "The optimizer has a learning rate schedule of its own, which a callback cannot change: "
            "give the optimizer a number as its learning rate, or leave the callback out"
        ) from error


def _velocities(optimizer: Any) -> list[Any]:
    """Return the momentum of each variable, which contains the old learning rate and must be scaled with it.

    Horovod corrects the momentum coefficient for one batch instead. That does not work in compiled steps, where the
    coefficient is a constant.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not getattr(inner, "momentum", 0):
        return []
    if hasattr(inner, "_slots"):  # legacy optimizers of Keras 2
        return [slots["momentum"] for slots in inner._slots.values() if "momentum" in slots]
    return [one for one in getattr(inner, "momentums", None) or getattr(inner, "_momentums", []) if one is not None]
