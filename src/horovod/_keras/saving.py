# SPDX-License-Identifier: Apache-2.0
"""Loading of models from files, with their optimizers distributed again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod._keras.optimizer import copy_state


def load_model(
    keras: Any,
    wrap_optimizer: Callable[[Any], Any],
    filepath: Any,
    custom_optimizers: Sequence[type] | None,
    custom_objects: Mapping[str, Any] | None,
    legacy_opts: bool = False,
) -> Any:
    """Return the model of keras.models.load_model, with a wrapped optimizer that keeps its state."""
    known = {one.__name__: one for one in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return model  # saved without an optimizer: the user compiles the model
    distributed = wrap_optimizer(optimizer)
    copy_state(optimizer, distributed, model.trainable_variables)
    model.optimizer = distributed
    # Keras saves a compiled model's configuration from this record, which compile() made.
    record = getattr(getattr(model, "_compile_config", None), "config", None)
    if isinstance(record, dict) and "optimizer" in record:
        record["optimizer"] = distributed
    return model
