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
    """Overwrite variables with those of one rank, as one unit.

    Call it after the model and the optimizer have their variables, so that all ranks begin with the same ones.

    Args:
        variables: Variables in a list, a tree, or a function that returns them.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        process_set: The ranks that take part. By default all ranks of the job.
        inplace: Has no effect.

    Returns:
        In a graph, the operation to run. Eagerly, the variables have changed when the function returns.

    Raises:
        tf.errors.InvalidArgumentError: An argument is not valid, another operation with this name is pending, or this
            rank is not a member of the process set.
        tf.errors.FailedPreconditionError: The ranks passed tensors or arguments that do not fit together, or the engine
            is not running.
        tf.errors.UnknownError: A rank failed or left the job.

    Example:
        >>> variable = tf.Variable([1.0 + hvd.rank()])
        >>> hvd.broadcast_variables([variable], root_rank=0)  # the variable is now [1.0] on all ranks
    """
    everything = [tf_variable(variable) for variable in flattened(variables)]
    found = [variable for variable in everything if not is_own(variable)]
    return tf.group(*broadcast_(found, root_rank, process_set=process_set)) if found else tf.group()


def broadcast_global_variables(root_rank: int) -> Any:
    """Return an operation that overwrites all global variables of a graph with those of one rank.

    Args:
        root_rank: The rank that sends its values, counted among all ranks of the job.

    Returns:
        The operation. Run it once in a session, after the initialization.

    Raises:
        RuntimeError: TensorFlow executes eagerly. Use hvd.broadcast_variables() instead.

    Example:
        >>> with tf.Graph().as_default():
        ...     start = hvd.broadcast_global_variables(root_rank=0)
    """
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
    """Send one rank's Python object to all ranks.

    The object is pickled with cloudpickle. Threads that broadcast objects at the same time in one process set need
    names of their own.

    Args:
        obj: The root's object. The other ranks may pass anything.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        session: Has no effect.
        name: Name under which the ranks match this call. By default 'broadcast_object'.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The root's object. On the root it is the object itself, on other ranks a copy.

    Raises:
        HorovodInternalError: The root could not pickle its object, or a rank failed.

    Example:
        >>> config = hvd.broadcast_object({'lr': 0.1} if hvd.rank() == 0 else None)
        >>> config['lr']  # on 2 ranks: 0.1
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """Return a function that sends one rank's Python object to all ranks.

    Args:
        root_rank: The rank that sends its values, counted among all ranks of the job.
        session: Has no effect.
        name: Name under which the ranks match this call. By default 'broadcast_object'.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A function of one object, which returns the root's object. It may be called many times.

    Example:
        >>> send = hvd.broadcast_object_fn(root_rank=0)
        >>> send(hvd.rank())  # on 2 ranks: 0
    """

    def function(obj: Any) -> Any:
        return objects.broadcast_object(obj, root_rank, name, process_set)

    return function


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Gather one Python object from each rank.

    The objects are pickled with cloudpickle. Threads that gather objects at the same time in one process set need names
    of their own.

    Args:
        obj: Any object that can be pickled.
        session: Has no effect.
        name: Name under which the ranks match this call. By default 'allgather_object'.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The objects of all ranks, in the order of the ranks. Each is a copy, also this rank's own.

    Raises:
        HorovodInternalError: A rank could not pickle its object, or failed.

    Example:
        >>> found = hvd.allgather_object({'rank': hvd.rank()})
        >>> [one['rank'] for one in found]  # on 2 ranks: [0, 1]
    """
    return objects.allgather_object(obj, name, process_set)
