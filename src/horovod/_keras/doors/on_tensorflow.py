# SPDX-License-Identifier: Apache-2.0
"""Keras on TensorFlow, version 2 or 3, over horovod.tensorflow: eager, in graphs and in what XLA compiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.common.process_sets import ProcessSet
from horovod.tensorflow import Compression as Compression
from horovod.tensorflow import allreduce as allreduce
from horovod.tensorflow import reducescatter as reducescatter
from horovod.tensorflow.elastic import TensorFlowKerasState
from horovod.tensorflow.elastic import run as run
from horovod.tensorflow.functions import broadcast_variables as _broadcast_variables
from horovod.tensorflow.gradients import dense as dense
from horovod.tensorflow.gradients import scaled_local as divided_by_size  # noqa: F401 - one of a door's functions
from horovod.tensorflow.mpi_ops import allgather as allgather
from horovod.tensorflow.mpi_ops import broadcast as broadcast

State = TensorFlowKerasState


def tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value)


def confirm(variables: Sequence[Any]) -> None:
    """Nothing to ask: all that is sent goes through host memory, and is there when its operation is done."""


def is_sparse(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


def reduce_group(
    tensors: Sequence[Any],
    name: str,
    *,
    op: int,
    prescale: float,
    postscale: float,
    compression: Any,
    process_set: ProcessSet,
) -> list[Any]:
    reduced = hvd.grouped_allreduce(
        tensors,
        name=name,
        op=op,
        prescale_factor=prescale,
        postscale_factor=postscale,
        compression=compression,
        process_set=process_set,
    )
    return list(reduced)


def broadcast_variables(variables: Sequence[Any], root_rank: int, name: str) -> None:
    # Keras 3 wraps TensorFlow's variables; those of Keras 2 are variables themselves.
    own = [variable if isinstance(variable, tf.Variable) else variable.value for variable in variables]
    if own:
        _broadcast_variables(own, root_rank)
