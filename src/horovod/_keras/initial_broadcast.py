# SPDX-License-Identifier: Apache-2.0
"""Callback that gives all ranks the variables of one rank before the first step of a training."""

from __future__ import annotations

import warnings
from typing import Any

from horovod._keras.doors import backend_name, door_of
from horovod._keras.optimizer import build_on
from horovod._keras.undistributed import Checked, frames_of_frameworks, has_own_train_step
from horovod.common.context import default_context
from horovod.common.exceptions import HorovodRuntimeWarning
from horovod.common.keras_optimizers import hyperparameters_of, is_built, is_legacy, state_of
from horovod.common.objects import allgather_object


class BroadcastGlobalVariablesCallbackImpl(Checked):
    """Callback that broadcasts the root's variables once, after every on_train_begin and before the first step.

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
        self._unwrapped: Any = None  # the model's own train_function while _wrap_train_function has replaced it

    def register_local_var(self, var: Any) -> None:
        """Exclude a variable from the broadcast.

        Args:
            var: The variable.
        """
        self._local.append(var)

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.broadcast_done or self._has_begun:
            return
        self._has_begun = True
        model = self.model
        # Only TensorFlow may need it: on other backends fit has built all used layers by now.
        on_tensorflow = backend_name(self.keras) == "tensorflow"
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
            model.jax_state_sync()  # during fit on JAX, variables have no values until this call
        self._broadcast_weights(model)
        self._broadcast_states(_optimizers_of(model))
        self.broadcast_done = True

    def _wrap_train_function(self, model: Any) -> None:
        """Replace the train function by one that builds the model from the data before the next step."""
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
        """Build the model on ranks that have not yet done so; return True if it is built on all ranks."""
        error = ""
        if not _has_built_layers(model):
            try:
                door_of(self.keras).build_model(model, iterator)
            except Exception as failure:  # a user's model may raise any exception
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
            # A train_step that the user wrote may apply the optimizer to other variables than the model's.
            is_known = not has_own_train_step(model, self.keras) or any(standing[number] for standing in built)
            if optimizer is model.optimizer and (is_known or is_legacy(optimizer)):
                _try_to_build(optimizer, model)
        ready = [is_built(one) or is_legacy(one) for one in optimizers]
        standings = allgather_object(ready, "BroadcastGlobalVariables.ready")
        # If only some ranks have an optimizer's state, the first step creates it on the others.
        alike = [len({standing[number] for standing in standings}) == 1 for number in range(len(optimizers))]
        self._broadcast_states([one for one, is_alike in zip(optimizers, alike, strict=True) if is_alike])
        self.broadcast_done = all(all(standing) for standing in standings)

    def _broadcast_weights(self, model: Any) -> None:
        local = {id(variable) for variable in self._local}
        # Do not use `model.variables`: it includes the states of random generators, and dropout must differ between
        # ranks.
        weights = [variable for variable in model.weights if id(variable) not in local]
        door_of(self.keras).broadcast_variables(weights, self.root_rank, "BroadcastGlobalVariables.model")

    def _broadcast_states(self, optimizers: list[Any]) -> None:
        for number, optimizer in enumerate(optimizers):
            name = f"BroadcastGlobalVariables.optimizer.{number}"
            variables = [*state_of(optimizer), *hyperparameters_of(optimizer)]
            door_of(self.keras).broadcast_variables(variables, self.root_rank, name)


def _has_built_layers(model: Any) -> bool:
    """Return True if all layers are built. A layer that is never called gives False, but building again is harmless."""
    return bool(model.built) and all(layer.built for layer in model._flatten_layers())


def _optimizers_of(model: Any) -> list[Any]:
    """Return the optimizer that the model was compiled with, then those in the model's own attributes."""
    own = sorted((name, value) for name, value in vars(model).items() if hasattr(type(value), "apply_gradients"))
    found = {id(one): one for one in (getattr(model, "optimizer", None), *(value for _, value in own))}
    return [one for one in found.values() if one is not None]


def _try_to_build(optimizer: Any, model: Any) -> None:
    try:
        build_on(optimizer, model.trainable_variables)
    except (AttributeError, NotImplementedError, TypeError):
        pass  # only the first step can build this optimizer
