# SPDX-License-Identifier: Apache-2.0
"""Questions about Keras optimizers of all versions: where they come from, and which variables they have.

This module imports no framework.
"""

from __future__ import annotations

import importlib
from typing import Any


def keras_of(optimizer: Any) -> Any:
    """Return the keras module that an optimizer comes from (keras or tf_keras); raise ValueError for other objects."""
    for base in type(optimizer).__mro__:
        package = base.__module__.partition(".")[0]
        if package in ("keras", "tf_keras") and hasattr(optimizer, "apply_gradients"):
            return importlib.import_module(package)
    raise ValueError(
        f"DistributedOptimizer needs a Keras optimizer, not {optimizer!r}: "
        "keras.optimizers.get makes one from a name or a configuration"
    )


def is_legacy(optimizer: Any) -> bool:
    """Return True for an optimizer of tf.keras.optimizers.legacy, which creates variables when it needs them."""
    return hasattr(optimizer, "_create_all_weights")


def is_built(optimizer: Any) -> bool:
    """Return True if the optimizer has created its variables. Legacy optimizers of Keras 2 do not report this."""
    built, inner = getattr(optimizer, "built", getattr(optimizer, "_built", None)), inner_of(optimizer)
    return is_built(inner) if built is None and inner is not None else bool(built)


def inner_of(optimizer: Any) -> Any:
    """Return the optimizer inside a LossScaleOptimizer, None for any other."""
    return getattr(optimizer, "inner_optimizer", None)


def state_of(optimizer: Any) -> list[Any]:
    """Return an optimizer's variables, without the sums of gradients of a distributed optimizer."""
    variables = optimizer.variables
    passes = getattr(inner_of(optimizer) or optimizer, "_passes", None)
    own = {id(variable) for variable in passes.variables} if passes else set()
    return [variable for variable in (variables() if callable(variables) else variables) if id(variable) not in own]


def memories_of_optimizer(optimizer: Any) -> list[Any]:
    """Return the compression memories of a distributed optimizer on this rank; an empty list for other optimizers."""
    reduction = getattr(inner_of(optimizer) or optimizer, "_horovod", None)
    compressed = getattr(reduction, "compressed", None)
    return [] if compressed is None else list(compressed.memories.all.values())


def hook_of_optimizer(optimizer: Any) -> Any:
    """Return the compression hook of a distributed optimizer on PyTorch, or None."""
    reduction = getattr(inner_of(optimizer) or optimizer, "_horovod", None)
    return getattr(getattr(reduction, "compressed", None), "hook", None)


def hyperparameters_of(optimizer: Any) -> list[Any]:
    """Return the variables that hold hyperparameters, such as the learning rate, and that `state_of` leaves out.

    Keras 3 counts the learning rate among an optimizer's variables, Keras 2 does not. A schedule is not a variable.
    """
    holder = inner_of(optimizer) or optimizer
    if is_legacy(holder):
        holder._create_hypers()
        values = [value for _, value in sorted(holder._hyper.items())]
    else:
        values = [getattr(holder, "_learning_rate", None)]
    known = {id(variable) for variable in state_of(optimizer)}
    return [value for value in values if hasattr(value, "assign") and id(value) not in known]
