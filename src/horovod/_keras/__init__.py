# SPDX-License-Identifier: Apache-2.0
"""Code shared by horovod.keras and horovod.tensorflow.keras, for every version and backend of Keras.

As in Horovod, functions may take a `backend` as first argument; here it is the keras module that the program uses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from horovod._keras.doors import door_of
from horovod._keras.optimizer import distribute
from horovod._keras.saving import load_model as load_model
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.rules import resolve_op


class CallableList(list[Any]):
    """List that returns itself when called, because `variables` was a method in older Keras versions."""

    def __call__(self) -> CallableList:
        return self


def create_distributed_optimizer(
    keras: Any,
    optimizer: Any,
    name: str | None,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    op: int,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    local_layers: Sequence[Any] = (),
) -> Any:
    """Return a distributed optimizer. `device_dense` and `device_sparse` are ignored: the framework selects devices."""
    return distribute(
        optimizer,
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        local_layers=local_layers,
    )


def allreduce(
    backend: Any,
    value: Any,
    name: str | None,
    average: bool | None,
    prescale_factor: float,
    postscale_factor: float,
    op: int | None,
    compression: Any,
) -> Any:
    door = door_of(backend)
    return door.allreduce(
        door.tensor(value),
        name=name,
        op=resolve_op(op, average, stacklevel=4),
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
    )


def allgather(backend: Any, value: Any, name: str | None) -> Any:
    door = door_of(backend)
    return door.allgather(door.tensor(value), name=name)


def broadcast(backend: Any, value: Any, root_rank: int, name: str | None) -> Any:
    door = door_of(backend)
    return door.broadcast(door.tensor(value), root_rank, name=name)


def reducescatter(backend: Any, value: Any, name: str | None, op: int) -> Any:
    door = door_of(backend)
    return door.reducescatter(door.tensor(value), name=name, op=op)


def broadcast_global_variables(backend: Any, root_rank: int) -> Any:
    """Broadcast the variables of TensorFlow 1's default graph; raise RuntimeError if there is no such graph."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or tensorflow.executing_eagerly():
        raise RuntimeError(
            "There is no longer a list of all variables: pass hvd.callbacks.BroadcastGlobalVariablesCallback(0) to "
            "model.fit, or the variables to hvd.broadcast_variables of your framework's API"
        )
    from horovod.tensorflow import functions

    return functions.broadcast_global_variables(root_rank)


def _eval(backend: Any, op_or_result: Any) -> Any:
    """Return a result unchanged; run an operation of a TensorFlow 1 graph in Keras's session."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or tensorflow.executing_eagerly():
        return op_or_result
    return backend.backend.get_session().run(op_or_result)
