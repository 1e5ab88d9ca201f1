# SPDX-License-Identifier: Apache-2.0
"""The elastic state of a Keras model: its weights, those of its optimizer, and any Python values beside them."""

from __future__ import annotations

import sys
from typing import Any

from horovod._keras.doors import door_of
from horovod._keras.optimizer import build_on, keras_of, state_of
from horovod.common.context import default_context
from horovod.common.elastic import ObjectState
from horovod.common.objects import broadcast_object


class KerasModelState(ObjectState):
    """Saves weights in memory; every keyword becomes an attribute that is saved with them."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not model.built:
            raise ValueError(
                "The model has no weights yet, and an elastic state must know them: build it first, with an Input "
                "layer, model.build(input_shape) or one call on a batch"
            )
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        if self.optimizer is not None:
            build_on(self.optimizer, model.trainable_variables)  # so that there is a state to go back to
        self._saved_weights: list[Any] = []
        self._keep_weights()
        super().__init__(lambda value: broadcast_object(value, 0, "KerasState"), _rank, **kwargs)

    def save(self) -> None:
        self._keep_weights()
        super().save()

    def restore(self) -> None:
        for variable, value in zip(self._variables(), self._saved_weights, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        door_of(self._keras()).broadcast_variables(self._variables(), 0, "KerasState.variables")
        self._keep_weights()
        super().sync()

    def _variables(self) -> list[Any]:
        return [*self.model.weights, *([] if self.optimizer is None else state_of(self.optimizer))]

    def _keep_weights(self) -> None:
        if hasattr(self.model, "jax_state_sync"):  # during fit the weights are elsewhere
            self.model.jax_state_sync()
        self._saved_weights = [_copy(variable) for variable in self._variables()]

    def _keras(self) -> Any:
        return sys.modules["keras"] if self.optimizer is None else keras_of(self.optimizer)


def _copy(variable: Any) -> Any:
    value = variable.numpy()
    return value.copy() if hasattr(value, "copy") else value


def _rank() -> int:
    return default_context.topology.rank
