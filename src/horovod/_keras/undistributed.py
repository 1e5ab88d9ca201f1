# SPDX-License-Identifier: Apache-2.0
"""Warning about training with Horovod's callbacks but without a distributed optimizer, where ranks silently diverge."""

from __future__ import annotations

import sys
import warnings
import weakref
from typing import Any

from horovod._keras.reduction import GradientReduction
from horovod.common.context import default_context
from horovod.common.exceptions import HorovodRuntimeWarning

_FRAMEWORKS = ("horovod", "keras", "tf_keras", "tensorflow")
_told: weakref.WeakSet[Any] = weakref.WeakSet()
# Models whose ranks exchange weights in rounds, see horovod._keras.local_sgd.
trains_in_rounds: weakref.WeakSet[Any] = weakref.WeakSet()


class Checked:
    """Base of all Horovod callbacks for Keras; checks the optimizer when training begins."""

    keras: Any
    model: Any

    def on_train_begin(self, logs: Any = None) -> None:
        model = self.model
        if model in _told or not _trains_alone(model, self.keras) or default_context.topology.rank != 0:
            return
        _told.add(model)
        warnings.warn(
            f"The optimizer of this training, {type(model.optimizer).__name__}, is not distributed: each of the "
            f"{default_context.topology.size} ranks trains a model of its own, and averaged metrics hide that they "
            "differ. Pass optimizer=hvd.DistributedOptimizer(optimizer) to model.compile",
            HorovodRuntimeWarning,
            stacklevel=frames_of_frameworks(),
        )


def _trains_alone(model: Any, keras: Any) -> bool:
    if not default_context.is_initialized or default_context.topology.size == 1 or model in trains_in_rounds:
        return False
    optimizer = getattr(model, "optimizer", None)
    # A train_step that the user wrote may reduce gradients itself, for example with a DistributedGradientTape.
    return optimizer is not None and not has_own_train_step(model, keras) and not is_distributed(optimizer)


def has_own_train_step(model: Any, keras: Any) -> bool:
    """Return True if the user has written the model's train_step."""
    return getattr(type(model), "train_step", None) is not getattr(keras.Model, "train_step", None)


def is_distributed(optimizer: Any) -> bool:
    """Return True for a distributed optimizer, also inside a loss scale or inside Keras's wrapper of a v1 optimizer."""
    for name in ("inner_optimizer", "optimizer"):
        optimizer = getattr(optimizer, name, optimizer)
    reduces = isinstance(getattr(optimizer, "_horovod", None), GradientReduction)
    return reduces or type(optimizer).__module__.startswith("horovod.")


def frames_of_frameworks() -> int:
    """Return the stacklevel, relative to the caller, of the program's call of fit."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _FRAMEWORKS:
        level, frame = level + 1, frame.f_back
    return level
