# SPDX-License-Identifier: Apache-2.0
"""The operations of the MXNet API, with the names, signatures, defaults and errors of Horovod's MXNet API.

All functions return at once, as MXNet's own functions do. A failure is raised where the program waits for a result
(wait_to_read, asnumpy, mx.nd.waitall). allgather and alltoall exchange sizes first, so they may raise themselves.
Functions whose names end in an underscore write into the given array. `priority` is MXNet's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.common import door
from horovod.common.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, Call
from horovod.common.door import *  # noqa: F403 - they are the door's own names too
from horovod.common.door import _basics as _basics
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.rules import Adasum, Average, Sum, resolve_op
from horovod.common.util import check_installed_version as check_installed_version
from horovod.common.util import get_average_backwards_compatibility_fun as get_average_backwards_compatibility_fun
from horovod.common.util import get_ext_suffix as get_ext_suffix
from horovod.mxnet import queue
from horovod.mxnet.adapter import NDArray
from horovod.mxnet.collectives import QueuedCollectives, plain

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]
__all__ += door.__all__

dll_path = queue.LIBRARY_PATH
MPI_MXNET_LIB_CTYPES = queue.library
handle_average_backwards_compatibility = resolve_op


_collectives = QueuedCollectives()


def shutdown() -> None:  # type: ignore[no-redef]  # instead of the other doors'
    """Leave the other ranks and stop the engine.

    Operations that MXNet has queued run first. hvd.init() may be called again. A program that ends calls this function
    itself.

    Example:
        >>> hvd.shutdown()
        >>> hvd.init()  # the ranks meet again
    """
    queue.leave()


def _result(call: Call, tensors: Sequence[NDArray], priority: int) -> Any:
    """Queue the call and return the array that MXNet will compute."""
    _collectives.queue.priority = priority
    try:
        return _collectives.start(call, tensors).output
    except ValueError as error:
        if isinstance(error, RuntimeError):
            raise
        raise queue.HorovodArgumentError(str(error)) from error


def _reduce_op(op: int | None, average: bool | None) -> int:
    resolved = resolve_op(op, average, stacklevel=4)
    assert resolved != Adasum, "Adasum is not supported for MXNet"
    return resolved


# Allreduce


def allreduce(
    tensor: NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> NDArray:
    """Reduce an NDArray over all ranks and return the result on every rank.

    MXNet runs the operation later. If it fails, reading the result raises the error.

    Args:
        tensor: The NDArray that this rank contributes. It does not change.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        priority: MXNet's priority of the operation.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max or hvd.Product.

    Returns:
        A new NDArray with the shape of the input.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed NDArrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.
        AssertionError: `op` is not supported.

    Example:
        >>> tensor = mx.nd.zeros(2) + hvd.rank()
        >>> hvd.allreduce(tensor, op=hvd.Sum).asnumpy().tolist()  # on 2 ranks: [1.0, 1.0]
    """
    op = _reduce_op(op, average)
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor)
    return _result(call, [tensor], priority)


def allreduce_(
    tensor: NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> NDArray:
    """Reduce an NDArray over all ranks, in place.

    MXNet runs the operation later. If it fails, reading the result raises the error.

    Args:
        tensor: The NDArray that this rank contributes. The result overwrites it.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        priority: MXNet's priority of the operation.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max or hvd.Product.

    Returns:
        The NDArray that was passed, with the result in it.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed NDArrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.
        AssertionError: `op` is not supported.

    Example:
        >>> tensor = mx.nd.zeros(2) + hvd.rank()
        >>> hvd.allreduce_(tensor).asnumpy().tolist()  # on 2 ranks: [0.5, 0.5]
    """
    op = _reduce_op(op, average)
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, in_place=True)
    return _result(call, [tensor], priority)


def grouped_allreduce(
    tensors: Sequence[NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[NDArray]:
    """Reduce each NDArray of a list over all ranks, as one unit.

    No operation of the group starts before every rank has submitted the whole group. MXNet runs the operation later. If
    it fails, reading the result raises the error.

    Args:
        tensors: List of NDArrays that this rank contributes. They do not change.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        priority: MXNet's priority of the operation.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max or hvd.Product.

    Returns:
        The reduced NDArrays, in the order of the list.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed NDArrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.
        AssertionError: `op` is not supported.

    Example:
        >>> first, second = hvd.grouped_allreduce([mx.nd.zeros(2) + hvd.rank(), mx.nd.zeros(2)])
        >>> first.asnumpy().tolist()  # on 2 ranks: [0.5, 0.5]
    """
    op = _reduce_op(op, average)
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, grouped=True)
    return list(_result(call, tensors, priority))


def grouped_allreduce_(
    tensors: Sequence[NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[NDArray]:
    """Reduce each NDArray of a list over all ranks, as one unit and in place.

    No operation of the group starts before every rank has submitted the whole group. MXNet runs the operation later. If
    it fails, reading the result raises the error.

    Args:
        tensors: List of NDArrays that this rank contributes. The results overwrite them.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        priority: MXNet's priority of the operation.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max or hvd.Product.

    Returns:
        The NDArrays that were passed, with the results in them.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed NDArrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.
        AssertionError: `op` is not supported.

    Example:
        >>> tensors = [mx.nd.zeros(2) + hvd.rank(), mx.nd.zeros(2)]
        >>> hvd.grouped_allreduce_(tensors)[0].asnumpy().tolist()  # on 2 ranks: [0.5, 0.5]
    """
    op = _reduce_op(op, average)
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, grouped=True, in_place=True)
    return list(_result(call, tensors, priority))


# Allgather, broadcast, alltoall


def allgather(
    tensor: NDArray, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> NDArray:
    """Concatenate the NDArrays of all ranks along the first dimension.

    MXNet runs the operation later, but the call waits for the sizes of the result. If the operation fails later,
    reading the result raises the error.

    Args:
        tensor: The NDArray that this rank contributes. It may differ between ranks in its first dimension only.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        priority: MXNet's priority of the operation.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A new NDArray with the rows of all ranks, in the order of the ranks.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed NDArrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = mx.nd.zeros(2)[: hvd.rank() + 1]  # one row on rank 0, two on rank 1
        >>> hvd.allgather(tensor).asnumpy().tolist()  # on 2 ranks: [0.0, 0.0, 0.0]
    """
    return _result(Call(ALLGATHER, process_set, name), [plain(tensor)], priority)


def grouped_allgather(
    tensors: Sequence[NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[NDArray]:
    """Concatenate the NDArrays of all ranks, for each NDArray of a list, as one unit.

    No operation of the group starts before every rank has submitted the whole group. MXNet runs the operation later,
    but the call waits for the sizes of the result. If the operation fails later, reading the result raises the error.

    Args:
        tensors: List of NDArrays. Each may differ between ranks in its first dimension only.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        priority: MXNet's priority of the operation.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The concatenated NDArrays, in the order of the list.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed NDArrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> first, second = hvd.grouped_allgather([mx.nd.zeros(2) + hvd.rank(), mx.nd.zeros(2)])
        >>> first.asnumpy().tolist()  # on 2 ranks: [0.0, 0.0, 1.0, 1.0]
    """
    call = Call(ALLGATHER, process_set, name, grouped=True)
    return list(_result(call, [plain(tensor) for tensor in tensors], priority))


def broadcast(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """Send one rank's NDArray to all ranks.

    MXNet runs the operation later. If it fails, reading the result raises the error.

    Args:
        tensor: The root's values. The other ranks pass an NDArray of the same shape and type.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        priority: MXNet's priority of the operation.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A new NDArray with the root's values.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed NDArrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = mx.nd.zeros(2) + hvd.rank()
        >>> hvd.broadcast(tensor, root_rank=1).asnumpy().tolist()  # on 2 ranks: [1.0, 1.0]
    """
    return _result(Call(BROADCAST, process_set, name, root=root_rank), [tensor], priority)


def broadcast_(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """Overwrite an NDArray with one rank's values, on all ranks.

    MXNet runs the operation later. If it fails, reading the result raises the error.

    Args:
        tensor: The root's values. On other ranks, an NDArray of the same shape and type that they overwrite.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        priority: MXNet's priority of the operation.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The NDArray that was passed, with the root's values in it.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed NDArrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = mx.nd.zeros(2) + hvd.rank()
        >>> hvd.broadcast_(tensor, root_rank=1).asnumpy().tolist()  # on 2 ranks: [1.0, 1.0]
    """
    return _result(Call(BROADCAST, process_set, name, root=root_rank, in_place=True), [tensor], priority)


def alltoall(
    tensor: NDArray,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of an NDArray to every rank, and receive rows from every rank.

    MXNet runs the operation later, but the call waits for the sizes of the result. If the operation fails later,
    reading the result raises the error.

    Args:
        tensor: The rows to send, those for the first rank first.
        splits: Number of rows for each rank, as a list or an NDArray of integers. Rows beyond their sum are not sent.
            By default all ranks get an equal share.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        priority: MXNet's priority of the operation.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The received rows, in the order of the ranks. If `splits` is given, a tuple of these rows and the number of rows
        from each rank.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed NDArrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = mx.nd.array([10, 20], dtype='int32')
        >>> hvd.alltoall(tensor).asnumpy().tolist()  # on rank 0 of 2: [10, 10]
    """
    output, received = _result(Call(ALLTOALL, process_set, name, splits=splits), [plain(tensor)], priority)
    return output if splits is None else (output, received)


# Reducescatter


def reducescatter(
    tensor: NDArray,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> NDArray:
    """Reduce an NDArray over all ranks and return this rank's share of the rows.

    If the rows do not divide evenly, each of the first ranks gets one more. MXNet runs the operation later. If it
    fails, reading the result raises the error.

    Args:
        tensor: The NDArray that this rank contributes. It does not change.
        op: hvd.Average (the default) or hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        priority: MXNet's priority of the operation.
        process_set: The ranks that take part. By default all ranks of the job.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.

    Returns:
        A new NDArray with this rank's rows of the result.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed NDArrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.
        AssertionError: `op` is not supported.

    Example:
        >>> tensor = mx.nd.array([[1.0], [2.0]])
        >>> hvd.reducescatter(tensor, op=hvd.Sum).asnumpy().tolist()  # on rank 0 of 2: [[2.0]]
    """
    assert op in (Average, Sum), "reducescatter supports the operations Average and Sum"
    call = Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor)
    return _result(call, [plain(tensor)], priority)


def grouped_reducescatter(
    tensors: Sequence[NDArray],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[NDArray]:
    """Reduce each NDArray of a list over all ranks, as one unit, and return this rank's shares of the rows.

    No operation of the group starts before every rank has submitted the whole group. MXNet runs the operation later. If
    it fails, reading the result raises the error.

    Args:
        tensors: List of NDArrays that this rank contributes. They do not change.
        op: hvd.Average (the default) or hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        priority: MXNet's priority of the operation.
        process_set: The ranks that take part. By default all ranks of the job.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.

    Returns:
        This rank's rows of each result, in the order of the list.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed NDArrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.
        AssertionError: `op` is not supported.

    Example:
        >>> (first,) = hvd.grouped_reducescatter([mx.nd.array([[1.0], [2.0]])], op=hvd.Sum)
        >>> first.asnumpy().tolist()  # on rank 0 of 2: [[2.0]]
    """
    assert op in (Average, Sum), "grouped_reducescatter supports the operations Average and Sum"
    call = Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor, grouped=True)
    return list(_result(call, [plain(tensor) for tensor in tensors], priority))
