# SPDX-License-Identifier: Apache-2.0
"""The frameworks below Keras. Each module here says the same few things in terms of one framework's door:

Compression, run                            as in that door
State                                       the elastic state of a model and its optimizer
tensor(value)                               any value as a tensor of the framework
allreduce, allgather, broadcast, reducescatter      of one tensor
reduce_group(tensors, name, ..., contents)  gradients of a step, as one unit whose contents ranks compare, even if empty
compressed_by(compression, op)              what applies a compression method and has its state; None for a Compressor
reduce_compressed(compressed, tensors, ...) the same as reduce_group, by what compressed_by has returned
is_sparse, dense, divided_by_size           what differs about gradients
broadcast_variables(variables, root_rank)   Keras variables, in place
build_model(model, iterator)                on TensorFlow only: a model's variables, for the batches of an iterator
is_tracing()                                whether a branch of a condition may be run that is not taken
confirm(variables)                          raise if what a GPU made of them is of no account, as a rank was lost
"""

from __future__ import annotations

import importlib
from typing import Any


def is_keras3(keras: Any) -> bool:
    """Whether a keras module is multi-backend Keras, rather than Keras 2, which knows TensorFlow only."""
    version = getattr(keras, "__version__", "2")  # tf.keras has none where it is Keras 2
    return int(str(version).split(".")[0]) >= 3


def backend_name(keras: Any) -> str:
    """The framework that a keras module runs on: tensorflow, torch or jax; ImportError for any other."""
    name = str(keras.backend.backend()) if is_keras3(keras) else "tensorflow"
    if name not in ("tensorflow", "torch", "jax"):
        raise ImportError(
            f"Keras runs on its {name} backend, on which models cannot be trained together. "
            "Set KERAS_BACKEND to tensorflow, torch or jax before keras is imported"
        )
    return name


def door_of(keras: Any) -> Any:
    """The module here that serves a keras module. Only the framework that Keras runs on is imported."""
    return importlib.import_module(f"horovod._keras.doors.on_{backend_name(keras)}")
