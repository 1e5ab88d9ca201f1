# SPDX-License-Identifier: Apache-2.0
"""Adapters to the frameworks below Keras. Each module here implements these names with one framework's API.

Compression, run                            those of the framework's API
State                                       the elastic state of a model and its optimizer
tensor(value)                               any value as a tensor of the framework
allreduce, allgather, broadcast, reducescatter      collectives on one tensor
reduce_group(tensors, name, ..., contents)  reduce a step's gradients as one unit; ranks compare contents, even if empty
compressed_by(compression, op)              object that applies a compression method; None for a Compressor
reduce_compressed(compressed, tensors, ...) reduce_group with compression by the object from compressed_by
is_sparse, dense, divided_by_size           helpers for gradients
broadcast_variables(variables, root_rank)   broadcast Keras variables in place
build_model(model, iterator)                create a model's variables for an iterator's batches; on TensorFlow only
is_tracing()                                True if a branch of a condition may run although it is not taken
confirm(variables)                          raise if a rank was lost and GPU results in the variables are invalid
"""

from __future__ import annotations

import importlib
from typing import Any


def is_keras3(keras: Any) -> bool:
    """Return True for multi-backend Keras; False for Keras 2, which supports only TensorFlow."""
    version = getattr(keras, "__version__", "2")  # tf.keras has no version if it is Keras 2
    return int(str(version).split(".")[0]) >= 3


def backend_name(keras: Any) -> str:
    """Return the framework that a keras module runs on: tensorflow, torch or jax; raise ImportError for any other."""
    name = str(keras.backend.backend()) if is_keras3(keras) else "tensorflow"
    if name not in ("tensorflow", "torch", "jax"):
        raise ImportError(
            f"Keras runs on its {name} backend, which Horovod does not support. "
            "Set KERAS_BACKEND to tensorflow, torch or jax before keras is imported"
        )
    return name


def door_of(keras: Any) -> Any:
    """Return the adapter module for a keras module. Only the framework that Keras runs on is imported."""
    return importlib.import_module(f"horovod._keras.doors.on_{backend_name(keras)}")
