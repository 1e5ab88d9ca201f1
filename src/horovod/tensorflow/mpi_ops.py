# SPDX-License-Identifier: Apache-2.0
"""Operations of the TensorFlow API, with the names, signatures, defaults and errors of Horovod's contract.

All work in eager mode, in tf.function and in graphs of a v1 Session; operations on tensors have gradients. The
functions with a leading underscore have no compression and no IndexedSlices; the public functions add these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common import rules
from horovod.common.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER
from horovod.common.door import *  # noqa: F403 - they are the door's own names too
from horovod.common.door import _basics as _basics
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.rules import Adasum, Average, Sum, resolve_op
from horovod.common.util import check_installed_version as check_installed_version
from horovod.common.util import get_average_backwards_compatibility_fun as get_average_backwards_compatibility_fun
from horovod.common.util import get_ext_suffix as get_ext_suffix
from horovod.common.util import gpu_available as gpu_available
from horovod.common.util import num_rank_is_power_2 as num_rank_is_power_2
from horovod.tensorflow import ways
from horovod.tensorflow.calls import Call, Tensor

handle_average_backwards_compatibility = resolve_op
check_num_rank_power_of_2 = num_rank_is_power_2
MPI_LIB = ways.operations  # the native library; None if operations go through Python


def _one(call: Call, tensor: Any) -> Tensor:
    return ways.run(call, [tf.convert_to_tensor(tensor)])[0]


def _group(call: Call, tensors: Sequence[Any]) -> Sequence[Tensor]:
    return ways.run(call, [tf.convert_to_tensor(tensor) for tensor in tensors]) if tensors else tensors


# Reductions


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce a dense tensor over all ranks of the set."""
    _check_adasum(op, process_set)
    call = Call(
        ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, ignore_name_scope=ignore_name_scope
    )
    return _one(call, tensor)


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    contents: str = "",
) -> Sequence[Tensor]:
    """Reduce dense tensors as one unit: the reduction starts when every tensor is ready on every rank.

    `contents` describes the tensors; ranks on which it differs get an error.
    """
    _check_adasum(op, process_set)
    call = Call(
        ALLREDUCE,
        process_set,
        name,
        op,
        prescale_factor,
        postscale_factor,
        grouped=True,
        contents=contents,
        ignore_name_scope=ignore_name_scope,
    )
    return _group(call, tensors)


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce over all ranks and return this rank's share of the rows; the first ranks get one more if uneven."""
    _check_scatter(op)
    call = Call(
        REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor, ignore_name_scope=ignore_name_scope
    )
    return _one(call, tensor)


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Sequence[Tensor]:
    """Reducescatter each tensor of a list, as one unit."""
    _check_scatter(op)
    call = Call(
        REDUCESCATTER,
        process_set,
        name,
        op,
        prescale_factor,
        postscale_factor,
        grouped=True,
        ignore_name_scope=ignore_name_scope,
    )
    return _group(call, tensors)


def _check_adasum(op: int, process_set: ProcessSet) -> None:
    if op == Adasum and process_set is not global_process_set:
        raise NotImplementedError("Adasum works only on the global process set")


def _check_scatter(op: int) -> None:
    if op not in (Average, Sum):
        name = rules.OP_NAMES[op] if op in range(len(rules.OP_NAMES)) else repr(op)
        text = f"HorovodReducescatter supports the operations Average and Sum, not {name}"
        raise tf.errors.AbortedError(None, None, text)


# Movements


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Concatenate the tensors of all ranks along the first dimension.

    Gradients flow through this operation.

    Args:
        tensor: The tensor that this rank contributes. It may differ between ranks in its first dimension only.
        name: Name under which the ranks match this operation. By default it is made from the tensor's name in a graph,
            and from the kind of operation elsewhere.
        ignore_name_scope: Leave the name scopes of the graph out of the name.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A new tensor with the rows of all ranks, in the order of the ranks.

    Raises:
        tf.errors.InvalidArgumentError: An argument is not valid, another operation with this name is pending, or this
            rank is not a member of the process set.
        tf.errors.FailedPreconditionError: The ranks passed tensors or arguments that do not fit together, or the engine
            is not running.
        tf.errors.UnknownError: A rank failed or left the job.

    Example:
        >>> tensor = tf.zeros(2)[: hvd.rank() + 1]  # one row on rank 0, two on rank 1
        >>> hvd.allgather(tensor).numpy().tolist()  # on 2 ranks: [0.0, 0.0, 0.0]
    """
    return _one(Call(ALLGATHER, process_set, name, ignore_name_scope=ignore_name_scope), tensor)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Sequence[Tensor]:
    """Concatenate the tensors of all ranks, for each tensor of a list, as one unit.

    No operation of the group starts before every rank has submitted the whole group. Gradients flow through this
    operation.

    Args:
        tensors: List of tensors. Each may differ between ranks in its first dimension only.
        name: Name under which the ranks match this operation. By default it is made from the tensor's name in a graph,
            and from the kind of operation elsewhere.
        ignore_name_scope: Leave the name scopes of the graph out of the name.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The concatenated tensors, in the order of the list.

    Raises:
        tf.errors.InvalidArgumentError: An argument is not valid, another operation with this name is pending, or this
            rank is not a member of the process set.
        tf.errors.FailedPreconditionError: The ranks passed tensors or arguments that do not fit together, or the engine
            is not running.
        tf.errors.UnknownError: A rank failed or left the job.

    Example:
        >>> first, second = hvd.grouped_allgather([tf.zeros(2) + hvd.rank(), tf.zeros(2)])
        >>> first.numpy().tolist()  # on 2 ranks: [0.0, 0.0, 1.0, 1.0]
    """
    return _group(Call(ALLGATHER, process_set, name, grouped=True, ignore_name_scope=ignore_name_scope), tensors)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Send one rank's tensor to all ranks.

    Gradients flow through this operation.

    Args:
        tensor: The root's values. The other ranks pass a tensor of the same shape and type.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this operation. By default it is made from the tensor's name in a graph,
            and from the kind of operation elsewhere.
        ignore_name_scope: Leave the name scopes of the graph out of the name.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A new tensor with the root's values.

    Raises:
        tf.errors.InvalidArgumentError: An argument is not valid, another operation with this name is pending, or this
            rank is not a member of the process set.
        tf.errors.FailedPreconditionError: The ranks passed tensors or arguments that do not fit together, or the engine
            is not running.
        tf.errors.UnknownError: A rank failed or left the job.

    Example:
        >>> tensor = tf.zeros(2) + hvd.rank()
        >>> hvd.broadcast(tensor, root_rank=1).numpy().tolist()  # on 2 ranks: [1.0, 1.0]
    """
    return _one(Call(BROADCAST, process_set, name, root=root_rank, ignore_name_scope=ignore_name_scope), tensor)


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrite variables with those of one rank, as one unit.

    Args:
        variables: List of variables.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this operation. By default it is made from the tensor's name in a graph,
            and from the kind of operation elsewhere.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The assignments. In a graph, run them.

    Raises:
        tf.errors.InvalidArgumentError: An argument is not valid, another operation with this name is pending, or this
            rank is not a member of the process set.
        tf.errors.FailedPreconditionError: The ranks passed tensors or arguments that do not fit together, or the engine
            is not running.
        tf.errors.UnknownError: A rank failed or left the job.

    Example:
        >>> variable = tf.Variable([1.0 + hvd.rank()])
        >>> hvd.broadcast_([variable], root_rank=0)  # the variable is now [1.0] on all ranks
    """
    variables = list(variables)
    values = _group(Call(BROADCAST, process_set, name, grouped=True, root=root_rank), variables)
    return [variable.assign(value) for variable, value in zip(variables, values, strict=True)]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of a tensor to every rank, and receive rows from every rank.

    Gradients flow through this operation.

    Args:
        tensor: The rows to send, those for the first rank first.
        splits: Number of rows for each rank, as a list or a tensor of integers. Rows beyond their sum are not sent. By
            default all ranks get an equal share.
        name: Name under which the ranks match this operation. By default it is made from the tensor's name in a graph,
            and from the kind of operation elsewhere.
        ignore_name_scope: Leave the name scopes of the graph out of the name.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The received rows, in the order of the ranks. If `splits` is given, a tuple of these rows and the number of rows
        from each rank.

    Raises:
        tf.errors.InvalidArgumentError: An argument is not valid, another operation with this name is pending, or this
            rank is not a member of the process set.
        tf.errors.FailedPreconditionError: The ranks passed tensors or arguments that do not fit together, or the engine
            is not running.
        tf.errors.UnknownError: A rank failed or left the job.

    Example:
        >>> tensor = tf.constant([10, 20])
        >>> hvd.alltoall(tensor).numpy().tolist()  # on rank 0 of 2: [10, 10]
    """
    call = Call(ALLTOALL, process_set, name, ignore_name_scope=ignore_name_scope)
    if splits is None:
        return _one(call, tensor)
    output, received = ways.run(call, [tf.convert_to_tensor(tensor)], tf.cast(tf.convert_to_tensor(splits), tf.int32))
    return output, received


# Join and queries


def join() -> Tensor:
    """Take part in the other ranks' allreduces with zeros, until all ranks have called this function.

    Call it on a rank that has no more data. Operations other than allreduce fail until all ranks have joined.

    Returns:
        A tensor with the rank that joined last.

    Raises:
        tf.errors.UnknownError: A rank failed or left the job.

    Example:
        >>> last = hvd.join()
        >>> int(last) in range(hvd.size())  # on 2 ranks: True
    """
    return ways.join()


def size_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """Return a tensor with the number of ranks in a process set.

    The value is that of the world in which the graph runs, which elastic training may change.

    Args:
        process_set_id: Number of the process set, its attribute `process_set_id`. 0 is the set of all ranks.
        name: Name of the operation in the graph.

    Returns:
        A scalar tensor of int32.

    Example:
        >>> size = hvd.size_op()
        >>> int(size)  # on 2 ranks: 2
    """
    return ways.topology("size", process_set_id, name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """Return a tensor that says if this rank is a member of a process set.

    The value is that of the world in which the graph runs, which elastic training may change.

    Args:
        process_set_id: Number of the process set, its attribute `process_set_id`. 0 is the set of all ranks.
        name: Name of the operation in the graph.

    Returns:
        A scalar tensor of int32, 1 for members and 0 for other ranks.

    Example:
        >>> included = hvd.process_set_included_op()
        >>> int(included)  # on 2 ranks: 1
    """
    return ways.topology("process_set_included", process_set_id, name)


def local_size_op(name: str | None = None) -> Tensor:
    """Return a tensor with the number of ranks on this host.

    The value is that of the world in which the graph runs, which elastic training may change.

    Args:
        name: Name of the operation in the graph.

    Returns:
        A scalar tensor of int32.

    Example:
        >>> size = hvd.local_size_op()
        >>> int(size) == hvd.local_size()  # on 2 ranks: True
    """
    return ways.topology("local_size", name=name)


def rank_op(name: str | None = None) -> Tensor:
    """Return a tensor with this process's rank.

    The value is that of the world in which the graph runs, which elastic training may change.

    Args:
        name: Name of the operation in the graph.

    Returns:
        A scalar tensor of int32.

    Example:
        >>> rank = hvd.rank_op()
        >>> int(rank)  # on rank 1 of 2: 1
    """
    return ways.topology("rank", name=name)


def local_rank_op(name: str | None = None) -> Tensor:
    """Return a tensor with this process's number among the ranks on its host.

    The value is that of the world in which the graph runs, which elastic training may change.

    Args:
        name: Name of the operation in the graph.

    Returns:
        A scalar tensor of int32.

    Example:
        >>> rank = hvd.local_rank_op()
        >>> int(rank) == hvd.local_rank()  # on 2 ranks: True
    """
    return ways.topology("local_rank", name=name)
