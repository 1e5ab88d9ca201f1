# SPDX-License-Identifier: Apache-2.0
"""Creation of distributed optimizers: their class, their state, and the handling of a loss scale."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import Any, cast

from horovod._keras.doors import door_of, is_keras3
from horovod._keras.reduction import GradientReduction
from horovod.common.compression_methods import Dgc
from horovod.common.keras_optimizers import inner_of, is_built, is_legacy, keras_of, state_of


def distribute(optimizer: Any, door: Any = None, name: str | None = None, **options: Any) -> Any:
    """Return a copy of `optimizer`, with its options and state, that reduces gradients before it applies them."""
    keras = keras_of(optimizer)
    if isinstance(getattr(optimizer, "_horovod", None), GradientReduction):
        raise ValueError(f"{type(optimizer).__name__} is already a DistributedOptimizer; wrap it only once")
    inner = inner_of(optimizer)
    if inner is not None:
        return _rescaled(optimizer, distribute(inner, door, name, **options))
    door = door or door_of(keras)
    if options.get("compression") is None:
        options["compression"] = door.Compression.none
    compression = options["compression"]
    if isinstance(compression, Dgc) and getattr(optimizer, "momentum", None):
        raise ValueError(
            f"compression={compression.describe()} accumulates the momentum itself: give {type(optimizer).__name__} "
            "momentum=0, and its momentum to hvd.Compression.dgc(momentum=...)"
        )
    reduction = GradientReduction(door, name or f"Distributed{type(optimizer).__name__}", **options)
    made = _distributed_class(cast(Hashable, type(optimizer)), keras)
    distributed = made.from_config(_config(optimizer))
    distributed._reduce_by(reduction)
    copy_state(optimizer, distributed)
    return distributed


@functools.cache
def _distributed_class(original: Any, keras: Any) -> Any:
    """Return a subclass that reduces gradients, but whose instances report the original class as their `__class__`.

    Keras saves that class, so that saved models load without Horovod.
    """
    if is_keras3(keras):
        from horovod._keras import keras3

        keras3.agree_on_finite_gradients()
        base: type = keras3.Keras3Optimizer
    else:
        from horovod._keras import keras2

        base = keras2.base_for(original, keras)
    members = {
        "__class__": property(lambda self: original),
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
    }
    return type(original.__name__, (base, original), members)


def _config(optimizer: Any) -> dict[str, Any]:
    rate = getattr(optimizer, "_learning_rate", None)
    if not callable(rate) or hasattr(rate, "assign"):
        config: dict[str, Any] = optimizer.get_config()
        return config
    # Keep a schedule object as it is, because not every schedule can be serialized.
    try:
        optimizer._learning_rate = 0.0
        config = optimizer.get_config()
    finally:
        optimizer._learning_rate = rate
    return config | {"learning_rate": rate}


def _rescaled(optimizer: Any, inner: Any) -> Any:
    """Return a loss-scale optimizer like this one around `inner`: gradients are always reduced without the scale."""
    config = {
        name: getattr(optimizer, name)
        for name in ("name", "dynamic", "initial_scale", "dynamic_growth_steps")
        if hasattr(optimizer, name)
    }
    if not config.get("dynamic", True):
        config.pop("dynamic_growth_steps", None)
    if not is_keras3(keras_of(optimizer)):
        config.pop("name", None)
    scaled = type(optimizer)(inner, **config)
    copy_state(optimizer, scaled)
    return scaled


def copy_state(source: Any, target: Any, variables: Sequence[Any] | None = None) -> None:
    """Copy the state of an optimizer to another of its class, if it has state: `variables` are those of the model."""
    variables = variables or getattr(source, "_trainable_variables", None)
    if not variables:
        return
    for one in (source, target):
        build_on(one, variables)
    # strict=False, because from .h5 files Keras 3 loads the first variables of an optimizer, but not its slots.
    for new, old in zip(state_of(target), state_of(source), strict=False):
        new.assign(old)


def build_on(optimizer: Any, variables: Sequence[Any]) -> None:
    """Create the optimizer's variables for those of a model, if they do not exist yet."""
    if is_legacy(optimizer):
        optimizer._create_all_weights(list(variables))
    elif not is_built(optimizer):
        optimizer.build(list(variables))
