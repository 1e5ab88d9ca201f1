# SPDX-License-Identifier: Apache-2.0
"""Kinds of Keras optimizers: where one comes from, how it was built, and what is inside."""

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
