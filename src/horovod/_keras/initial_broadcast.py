# SPDX-License-Identifier: Apache-2.0
"""The callback that gives all ranks the variables of one rank before the first step of a training."""

from __future__ import annotations

import warnings
from typing import Any

from horovod._keras.doors import backend_name, door_of
from horovod._keras.optimizer import build_on, hyperparameters_of, is_built, is_legacy, state_of
from horovod._keras.undistributed import Checked, frames_of_frameworks, has_own_train_step
from horovod.common.context import default_context
from horovod.common.exceptions import HorovodRuntimeWarning
from horovod.common.objects import allgather_object


class BroadcastGlobalVariablesCallbackImpl(Checked):
    """Give all ranks the root's variables, once: after every callback's on_train_begin and before the first step.

    On TensorFlow, Keras builds optimizers, and models without an input shape, in the first step. This callback builds
    them earlier. If that fails, it broadcasts after the first step.
    """

    def __init__(self, backend: Any, root_rank: int, device: str = "", *args: Any) -> None:
        super().__init__(*args)
        self.keras = backend
        self.root_rank = root_rank
        self.broadcast_done = False
        self._has_begun = False
        self._local: list[Any] = []
        self._unwrapped: Any = None  # the model's own train_function, while it has ours

    def register_local_var(self, var: Any) -> None:
        """Leave a variable as each rank has it."""
        self._local.append(var)

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.broadcast_done or self._has_begun:
            return
        self._has_begun = True
        model = self.model
        on_tensorflow = backend_name(self.keras) == "tensorflow"  # elsewhere fit has built all layers that are used
        is_built = _has_built_layers(model) if on_tensorflow else bool(model.built)
        if all(allgather_object(is_built, "BroadcastGlobalVariables.built")):
            self._broadcast_before_first_step(model)
        elif on_tensorflow:
            self._wrap_train_function(model)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.broadcast_done:
            return
        model = self.model
        self._unwrap_train_function(model)
        if hasattr(model, "jax_state_sync"):
            model.jax_state_sync()  # during fit on JAX, variables have no values
        self._broadcast_weights(model)
        self._broadcast_states(_optimizers_of(model))
        self.broadcast_done = True

    def _wrap_train_function(self, model: Any) -> None:
        """Let the coming call of the train function, which gets the data, build the model first."""
        self._unwrapped = model.train_function

        def train_function(iterator: Any) -> Any:
            self._unwrap_train_function(model)
            if self._build_model(model, iterator):
                self._broadcast_before_first_step(model)
            return model.train_function(iterator)

        model.train_function = train_function

    def _unwrap_train_function(self, model: Any) -> None:
        if self._unwrapped is not None:
            model.train_function, self._unwrapped = self._unwrapped, None

    def _build_model(self, model: Any, iterator: Any) -> bool:
        """Build the model on ranks that have not yet done so; return whether all ranks have it."""
        error = ""
        if not _has_built_layers(model):
            try:
                door_of(self.keras).build_model(model, iterator)
            except Exception as failure:  # whatever the user's model raises
                error = f"{type(failure).__name__}: {failure}".partition("\n")[0]
        errors = allgather_object(error, "BroadcastGlobalVariables.errors")
        failed = [rank for rank, error in enumerate(errors) if error]
        if failed and default_context.topology.rank == 0:
            warnings.warn(
                f"BroadcastGlobalVariablesCallback cannot build the model before the first step: rank {failed[0]} got "
                f"{errors[failed[0]]}. The first call of the training function averages gradients of different "
                f"models, and rank {self.root_rank}'s variables are broadcast after it. Give the model an Input layer, "
                "or call it on a batch before fit",
                HorovodRuntimeWarning,
                stacklevel=frames_of_frameworks(),
            )
        return not failed

    def _broadcast_before_first_step(self, model: Any) -> None:
        self._broadcast_weights(model)
        optimizers = _optimizers_of(model)
        built = allgather_object([is_built(one) for one in optimizers], "BroadcastGlobalVariables.optimizers")
        for number, optimizer in enumerate(optimizers):
            # A train_step of the user's own may apply the optimizer to other variables than the model's.
            is_known = not has_own_train_step(model, self.keras) or any(standing[number] for standing in built)
            if optimizer is model.optimizer and (is_known or is_legacy(optimizer)):
                _try_to_build(optimizer, model)
        ready = [is_built(one) or is_legacy(one) for one in optimizers]
        standings = allgather_object(ready, "BroadcastGlobalVariables.ready")
        # Where only some ranks have an optimizer's state, the first step makes it on all of them.
        alike = [len({standing[number] for standing in standings}) == 1 for number in range(len(optimizers))]
        self._broadcast_states([one for one, is_alike in zip(optimizers, alike, strict=True) if is_alike])
        self.broadcast_done = all(all(standing) for standing in standings)

    def _broadcast_weights(self, model: Any) -> None:
        local = {id(variable) for variable in self._local}
        # Not `variables`: the states of random generators among them would make dropout the same on all ranks.
        weights = [variable for variable in model.weights if id(variable) not in local]
        door_of(self.keras).broadcast_variables(weights, self.root_rank, "BroadcastGlobalVariables.model")

    def _broadcast_states(self, optimizers: list[Any]) -> None:
        for number, optimizer in enumerate(optimizers):
            name = f"BroadcastGlobalVariables.optimizer.{number}"
            variables = [*state_of(optimizer), *hyperparameters_of(optimizer)]
            door_of(self.keras).broadcast_variables(variables, self.root_rank, name)


def _has_built_layers(model: Any) -> bool:
    """Return False also for a model with a layer that is never called; building it once more does no harm."""
    return bool(model.built) and all(layer.built for layer in model._flatten_layers())


def _optimizers_of(model: Any) -> list[Any]:
    """Return the optimizer that the model was compiled with, then those that it has as attributes of its own."""
    own = sorted((name, value) for name, value in vars(model).items() if hasattr(type(value), "apply_gradients"))
    found = {id(one): one for one in (getattr(model, "optimizer", None), *(value for _, value in own))}
    return [one for one in found.values() if one is not None]


def _try_to_build(optimizer: Any, model: Any) -> None:
    try:
        build_on(optimizer, model.trainable_variables)
    except (AttributeError, NotImplementedError, TypeError):
        pass  # an optimizer that only the first step can build
