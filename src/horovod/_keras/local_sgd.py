# SPDX-License-Identifier: Apache-2.0
"""Callbacks for local SGD and DiLoCo: they exchange weights between the batches of model.fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from horovod._keras.undistributed import is_distributed, trains_in_rounds
from horovod.common.local_sgd import Core, Options

Floats = npt.NDArray[np.float32]
_DTYPES = ("float32", "bfloat16", "float16")


class RoundsCallbackImpl:
    """Callback that starts, advances and merges rounds after each batch. It is made with the options of the rounds."""

    model: Any
    params: dict[str, Any]

    def __init__(self, backend: Any, options: Options, *args: Any) -> None:
        super().__init__(*args)
        self.keras = backend
        self._options = options
        self._core: Core | None = None
        self._trained: Any = None  # the model that the core belongs to
        self._loaded: Mapping[str, Any] | None = None
        self._begin = 0

    def set_model(self, model: Any) -> None:
        """Remember that this model is trained in rounds, so that no callback warns about ranks that train alone."""
        super().set_model(model)  # type: ignore[misc]
        trains_in_rounds.add(model)

    def on_train_begin(self, logs: Any = None) -> None:
        """Check that the rounds fit the way in which the model was compiled."""
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None and is_distributed(optimizer):
            raise ValueError(
                "The model was compiled with hvd.DistributedOptimizer, which exchanges gradients in every step: pass "
                "the optimizer itself to model.compile"
            )
        check_steps_per_execution(self._options, steps_per_execution(self.model))
        if self._core is not None and self.model.built:
            now = ModelWeights(self.model).names_and_shapes()
            if self._core.weights.names_and_shapes() != now:
                self._core = None  # layers were frozen or unfrozen since the last fit, which ended all rounds

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Give all ranks the weights of the first rank before the first batch, if the model has weights by then."""
        self._begin = int(batch)
        if self.model.built:
            self._prepared()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the batches of this execution; start and merge the rounds that are due."""
        core = self._prepared()
        for _ in range(self._steps_until(int(batch))):
            core.step()

    def on_train_end(self, logs: Any = None) -> None:
        """Give all ranks the global weights: those that fit returns are equal on all ranks."""
        if self._core is not None:
            self._core.finish()

    def state_dict(self) -> dict[str, Any]:
        """Return what training in rounds needs to continue.

        Save it beside the model.

        Returns:
            The counters, the global weights and the outer momentum. It is empty before the first batch.
        """
        return {} if self._core is None else self._core.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Load the model's own weights and optimizer beforehand.

        Args:
            state: What state_dict() returned.
        """
        if self._core is None:
            self._loaded = state or None
        else:
            self._core.load_state_dict(state)

    def _prepared(self) -> Core:
        """Return the rounds of this model; the first call gives all ranks the weights of the first rank."""
        if self._core is None or self._trained is not self.model:
            self._core = Core(ModelWeights(self.model), self._options)
            self._trained = self.model
            if self._loaded is not None:
                self._core.load_state_dict(self._loaded)
                self._loaded = None
            self._core.begin()
        return self._core

    def _steps_until(self, end: int) -> int:
        """Return how many batches this execution had. Older versions of Keras pass its first batch to both calls."""
        if end > self._begin:
            return end - self._begin + 1
        steps = (self.params or {}).get("steps")
        left = steps - self._begin if steps else steps_per_execution(self.model)
        return max(1, min(steps_per_execution(self.model), left))


class ModelWeights:
    """Trainable weights of a Keras model, as horovod.common.local_sgd reads and writes them.

    Weights have names made of their layer's position, because Keras numbers layers differently in a new process.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._variables = named_weights(model)
        if not self._variables:
            raise ValueError("The model has no trainable weights: nothing can be exchanged")
        for variable in self._variables.values():
            if _dtype_of(variable) not in _DTYPES:
                raise ValueError(
                    f"The weight {_own_name(variable)} has the dtype {_dtype_of(variable)}, and rounds exchange only "
                    f"{', '.join(_DTYPES)}: make it a non-trainable weight"
                )

    def names_and_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return all trainable weights in the model's order."""
        return [(name, tuple(map(int, variable.shape))) for name, variable in self._variables.items()]

    def read(self, names: Sequence[str]) -> list[Floats]:
        """Return copies of these weights as float32 on the host."""
        self._sync()
        return [np.array(self._variables[name].numpy(), np.float32) for name in names]

    def write(self, values: Mapping[str, Floats]) -> None:
        """Replace these weights."""
        self._sync()
        for name, value in values.items():
            variable = self._variables[name]
            # A copy of its own, because a backend may use a NumPy array's memory without copying it.
            variable.assign(np.array(value).reshape(variable.shape))

    def _sync(self) -> None:
        if hasattr(self._model, "jax_state_sync"):
            self._model.jax_state_sync()  # during fit on JAX, variables have no values until this call


def named_weights(model: Any) -> dict[str, Any]:
    """Return each trainable weight once: those of the layers by position, then those of the model itself."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    owners = [(f"layers.{number}", layer) for number, layer in enumerate(model.layers)]
    for prefix, owner in [*owners, ("model", model)]:
        for weight in owner.trainable_weights:
            if id(weight) not in seen:
                seen.add(id(weight))
                found[f"{prefix}.{len(found)}.{_own_name(weight).rpartition('/')[2].partition(':')[0]}"] = weight
    return found


def steps_per_execution(model: Any) -> int:
    """Return how many batches the model trains on between two callbacks."""
    value = getattr(model, "steps_per_execution", None)
    if value is None:
        value = getattr(model, "_steps_per_execution", None)
    return int(value.numpy() if value is not None and hasattr(value, "numpy") else value or 1)


def check_steps_per_execution(options: Options, steps: int) -> None:
    """Raise ValueError if a round would begin or end inside an execution."""
    if steps == 1 or options.every is None:
        return
    names = {"every": options.every, "delay": options.delay}
    if options.fragments > 1:
        names["every / fragments"] = options.every / options.fragments  # type: ignore[assignment]
    for name, value in names.items():
        if value % steps:
            raise ValueError(
                f"steps_per_execution={steps} of model.compile does not divide {name}={value:g}: rounds can only begin "
                "and end between executions"
            )


def _own_name(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)


def _dtype_of(variable: Any) -> str:
    return str(getattr(variable.dtype, "name", variable.dtype))
