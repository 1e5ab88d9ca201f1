# SPDX-License-Identifier: Apache-2.0
"""Elastic state of a Keras model: its weights, its optimizer's variables, and any Python values."""

from __future__ import annotations

import sys
from typing import Any

from horovod._keras.doors import door_of
from horovod._keras.optimizer import build_on
from horovod.common.context import default_context
from horovod.common.elastic import ObjectState
from horovod.common.keras_optimizers import hook_of_optimizer, keras_of, state_of
from horovod.common.objects import broadcast_object
from horovod.common.slots import Slots, check_arrays, copied_values


class KerasModelState(ObjectState):
    """Weights saved in memory; every keyword becomes an attribute that is saved with them."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if not model.built:
            raise ValueError(
                "The model has no weights yet, and an elastic state must know them: build it first, with an Input "
                "layer, model.build(input_shape) or one call on a batch"
            )
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        if self.optimizer is not None:
            build_on(self.optimizer, model.trainable_variables)  # creates the state that `restore` returns to
        self._weights = Slots(_copy)
        self._weights.save(self._current_variables())
        hook = hook_of_optimizer(self.optimizer)
        # State of the compression on this rank, which no other rank has.
        self._memory: Any = None if hook is None else hook.state_dict()
        self._prepared_memory: Any = self._memory
        super().__init__(lambda value: broadcast_object(value, 0, "KerasState"), _rank, **kwargs)

    def _prepare(self) -> None:
        self._weights.prepare(self._current_variables())
        hook = hook_of_optimizer(self.optimizer)
        self._prepared_memory = None if hook is None else hook.state_dict()
        super()._prepare()

    def _keep(self) -> None:
        door_of(self._keras()).confirm(self._variables())
        self._weights.keep()
        self._memory = self._prepared_memory
        super()._keep()

    def restore(self) -> None:
        self._assign(self._weights.current)
        hook = hook_of_optimizer(self.optimizer)
        if hook is not None and self._memory is not None:
            hook.load_state_dict(self._memory)
        super().restore()

    def sync(self) -> None:
        door_of(self._keras()).broadcast_variables(self._variables(), 0, "KerasState.variables")
        self._weights.save(self._current_variables())
        super().sync()

    def pin_commit(self) -> dict[str, Any]:
        return {**super().pin_commit(), "variables": self._weights.pin()}

    def release_commit(self) -> None:
        super().release_commit()
        self._weights.release()

    def load_commit(self, content: dict[str, Any]) -> None:
        check_arrays(content["variables"], self._weights.current)
        super().load_commit(content)
        self._assign(content["variables"])
        self._weights.save(self._current_variables())

    def _assign(self, values: list[Any]) -> None:
        for variable, value in zip(self._variables(), values, strict=True):
            variable.assign(value)

    def _variables(self) -> list[Any]:
        return [*self.model.weights, *([] if self.optimizer is None else state_of(self.optimizer))]

    def _current_variables(self) -> list[Any]:
        if hasattr(self.model, "jax_state_sync"):  # during fit on JAX the weights are elsewhere
            self.model.jax_state_sync()
        return self._variables()

    def _keras(self) -> Any:
        return sys.modules["keras"] if self.optimizer is None else keras_of(self.optimizer)


def _copy(old: Any, variable: Any) -> Any:
    """Copy a variable's value, as a slots.CopyLeaf."""
    return copied_values(variable.numpy(), old)


def _rank() -> int:
    return default_context.topology.rank
