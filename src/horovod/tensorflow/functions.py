# SPDX-License-Identifier: Apache-2.0
"""Functions that use the operations: variables and Python objects from one rank to all.

The functions for objects do not use a graph: they return the object immediately, in eager mode and in sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from horovod.common import objects
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.compressing.memory import is_own
from horovod.tensorflow.mpi_ops import allgather as allgather
from horovod.tensorflow.mpi_ops import broadcast as broadcast
from horovod.tensorflow.mpi_ops import broadcast_
from horovod.tensorflow.mpi_ops import rank as rank
from horovod.tensorflow.mpi_ops import size as size
from horovod.tensorflow.util import flattened, tf_variable


def broadcast_variables(
    variables: Any, root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Give variables the root's values: at once in eager mode, else by running the operation that is returned.

    They travel as one unit. What compression keeps for each rank alone is left out. `inplace` is taken for the sake of
    scripts that give it.
    """
    everything = [tf_variable(variable) for variable in flattened(variables)]
    found = [variable for variable in everything if not is_own(variable)]
    return tf.group(*broadcast_(found, root_rank, process_set=process_set)) if found else tf.group()


def broadcast_global_variables(root_rank: int) -> Any:
    """An operation that gives all global variables of a graph the root's values."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables is for graphs: eager mode keeps no list of global variables. "
            "Use hvd.broadcast_variables(model.variables, root_rank) instead"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's object on every rank; the other ranks may pass anything.

    `name` must agree on all ranks and defaults to "broadcast_object". Threads that broadcast objects at the same time
    in one process set need names of their own.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """Return a function of one object that broadcasts it. The function may be called many times.

    `name` is as in `broadcast_object`, and so is its default.
    """

    def function(obj: Any) -> Any:
        return objects.broadcast_object(obj, root_rank, name, process_set)

    return function


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all ranks, in rank order.

    `name` must agree on all ranks and defaults to "allgather_object". Threads that gather objects at the same time in
    one process set need names of their own.
    """
    return objects.allgather_object(obj, name, process_set)
