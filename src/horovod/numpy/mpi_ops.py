# SPDX-License-Identifier: Apache-2.0
"""The operations of the NumPy API: names, signatures, defaults and errors as in horovod.torch, on NumPy arrays.

Out-of-place functions also take lists and scalars. Functions whose names end in an underscore write into the given
array. Each function first tries a native call, which takes a third of the time. It returns None for arguments that it
does not support.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from horovod._engine import ArrayCalls
from horovod.common import door, shared_buffers
from horovod.common.arrays import Array, NumpyAdapter, as_array, as_target, reader
from horovod.common.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, Call
from horovod.common.compression import Compression, Compressor
from horovod.common.context import default_context
from horovod.common.door import *  # noqa: F403 - they are the door's own names too
from horovod.common.door import _basics as _basics
from horovod.common.handles import Pending, translate
from horovod.common.ops import Collectives
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.rules import Average, resolve_op
from horovod.common.supported_methods import method_in
from horovod.common.wire import wire_of
from horovod.numpy import compressing

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "recv",
    "recv_async",
    "reducescatter",
    "reducescatter_async",
    "send",
    "send_async",
    "shared_zeros",
    "synchronize",
]
__all__ += door.__all__

_collectives: Collectives[Array] = Collectives(default_context, NumpyAdapter())
_finish = default_context.handles.finish
_native = ArrayCalls(reader, default_context.handles.plain, translate)
_PLAIN = Compression.none

poll = default_context.handles.poll
synchronize = default_context.handles.synchronize


def _add(pending: Pending) -> int:
    """Return a handle for an operation whose arrays must not be resized while it runs.

    NumPy does not resize an array that has a weak reference.
    """
    arrays = pending.keep if isinstance(pending.keep, tuple) else (pending.keep,)
    references = [weakref.ref(array) for array in arrays]
    pending.lies_still = lambda: all(reference() is not None for reference in references)
    return default_context.handles.add(pending)


def _run(call: Call, arrays: Sequence[Array]) -> Any:
    return _finish(_collectives.start(call, arrays, will_wait=True))


def _begin(call: Call, arrays: Sequence[Array]) -> int:
    return _add(_collectives.start(call, arrays, will_wait=False))


def shared_zeros(shape: int | Sequence[int], dtype: Any = float) -> Array:
    """Return an array of zeros in shared memory.

    If all ranks of a host pass such arrays to allreduce_(), nothing is copied first. After hvd.shutdown() it is an
    ordinary array. If shared memory has no room, a warning says so and the array lies in ordinary memory.

    Args:
        shape: Shape of the array.
        dtype: Any type but Python objects.

    Returns:
        The new array.

    Raises:
        ValueError: The type holds Python objects.
        HorovodNotInitializedError: Call hvd.init() first.

    Example:
        >>> array = hvd.shared_zeros((2, 3), np.float32)
        >>> hvd.allreduce_(array).shape  # on 2 ranks: (2, 3)
    """
    return shared_buffers.zeros(default_context, shape, dtype)


# Allreduce


def _compress(array: Array, compression: type[Compressor], wire: int) -> tuple[Array, Any]:
    """Compress an array, unless the engine sends it as `wire`. The engine then converts it, so no context is needed."""
    return (array, None) if wire and array.dtype == np.float32 else compression.compress(array)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce an array over all ranks and return the result on every rank.

    Args:
        tensor: The array that this rank contributes, or what np.asarray() accepts. It does not change.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        compression: hvd.Compression.none, fp16 or bf16 (the type in which floating-point values are sent),
            hvd.Compression.int8() (what leaves a host travels as 8-bit numbers; op must be Average or Sum), or your own
            subclass of hvd.Compressor.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A new array with the shape of the input.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = np.zeros(2) + hvd.rank()
        >>> hvd.allreduce(tensor, op=hvd.Sum).tolist()  # on 2 ranks: [1.0, 1.0]
    """
    if compression is _PLAIN:
        quick: Array | None = _native.allreduce(
            process_set.native, tensor, False, True, name, average, op, prescale_factor, postscale_factor
        )
        if quick is not None:
            return quick
    op = resolve_op(op, average)
    if method := method_in(compression, compressing.METHODS, "allreduce", op):
        call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor)
        return compressing.Exchange(method, call, _run).reduce([as_array(tensor)])[0]
    wire = wire_of(compression)
    array, ctx = _compress(as_array(tensor), compression, wire)
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, wire=wire)
    return compression.decompress(_run(call, [array]), ctx)


def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce an array over all ranks.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensor: The array that this rank contributes. It does not change.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns a new array.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.allreduce_async(np.zeros(2) + hvd.rank(), op=hvd.Sum)
        >>> hvd.synchronize(handle).tolist()  # on 2 ranks: [1.0, 1.0]
    """
    quick: int | None = _native.allreduce(
        process_set.native, tensor, False, False, name, average, op, prescale_factor, postscale_factor
    )
    if quick is not None:
        return quick
    op = resolve_op(op, average)
    return _begin(Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor), [as_array(tensor)])


def allreduce_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce an array over all ranks, in place.

    Args:
        tensor: The array that this rank contributes. The result overwrites it.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The array that was passed, with the result in it.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = np.zeros(2) + hvd.rank()
        >>> hvd.allreduce_(tensor).tolist()  # on 2 ranks: [0.5, 0.5]
    """
    quick: Array | None = _native.allreduce(
        process_set.native, tensor, True, True, name, average, op, prescale_factor, postscale_factor
    )
    if quick is not None:
        return quick
    op = resolve_op(op, average)
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, in_place=True)
    result: Array = _run(call, [as_target(tensor)])
    return result


def allreduce_async_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce an array over all ranks, in place.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensor: The array that this rank contributes. The result overwrites it.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns the array that was passed.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.allreduce_async_(np.zeros(2) + hvd.rank(), op=hvd.Max)
        >>> hvd.synchronize(handle).tolist()  # on 2 ranks: [1.0, 1.0]
    """
    quick: int | None = _native.allreduce(
        process_set.native, tensor, True, False, name, average, op, prescale_factor, postscale_factor
    )
    if quick is not None:
        return quick
    op = resolve_op(op, average)
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, in_place=True)
    return _begin(call, [as_target(tensor)])


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduce each array of a list over all ranks, as one unit.

    No operation of the group starts before every rank has submitted the whole group.

    Args:
        tensors: List of arrays that this rank contributes. They do not change.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        compression: hvd.Compression.none, fp16 or bf16 (the type in which floating-point values are sent),
            hvd.Compression.int8() (what leaves a host travels as 8-bit numbers; op must be Average or Sum), or your own
            subclass of hvd.Compressor.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The reduced arrays, in the order of the list.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> first, second = hvd.grouped_allreduce([np.zeros(2) + hvd.rank(), np.zeros(2)])
        >>> first.tolist()  # on 2 ranks: [0.5, 0.5]
    """
    op = resolve_op(op, average)
    if method := method_in(compression, compressing.METHODS, "grouped_allreduce", op):
        call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor)
        return compressing.Exchange(method, call, _run).reduce([as_array(tensor) for tensor in tensors])
    wire = wire_of(compression)
    compressed = [_compress(as_array(tensor), compression, wire) for tensor in tensors]
    arrays = [array for array, _ in compressed]
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, grouped=True, wire=wire)
    results = zip(_run(call, arrays), compressed, strict=True)
    return [compression.decompress(result, ctx) for result, (_, ctx) in results]


def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce each array of a list over all ranks, as one unit.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensors: List of arrays that this rank contributes. They do not change.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns the reduced arrays.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.grouped_allreduce_async([np.zeros(2) + hvd.rank(), np.zeros(2)])
        >>> hvd.synchronize(handle)[0].tolist()  # on 2 ranks: [0.5, 0.5]
    """
    op = resolve_op(op, average)
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, grouped=True)
    return _begin(call, [as_array(tensor) for tensor in tensors])


def grouped_allreduce_(
    tensors: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduce each array of a list over all ranks, as one unit and in place.

    No operation of the group starts before every rank has submitted the whole group.

    Args:
        tensors: List of arrays that this rank contributes. The results overwrite them.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The arrays that were passed, with the results in them.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensors = [np.zeros(2) + hvd.rank(), np.zeros(2)]
        >>> hvd.grouped_allreduce_(tensors)[0].tolist()  # on 2 ranks: [0.5, 0.5]
    """
    op = resolve_op(op, average)
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, grouped=True, in_place=True)
    return list(_run(call, [as_target(tensor) for tensor in tensors]))


def grouped_allreduce_async_(
    tensors: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce each array of a list over all ranks, as one unit and in place.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensors: List of arrays that this rank contributes. The results overwrite them.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns the arrays that were passed.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.grouped_allreduce_async_([np.zeros(2) + hvd.rank(), np.zeros(2)])
        >>> hvd.synchronize(handle)[0].tolist()  # on 2 ranks: [0.5, 0.5]
    """
    op = resolve_op(op, average)
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, grouped=True, in_place=True)
    return _begin(call, [as_target(tensor) for tensor in tensors])


# Allgather


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """Concatenate the arrays of all ranks along the first dimension.

    Args:
        tensor: The array that this rank contributes. It may differ between ranks in its first dimension only.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A new array with the rows of all ranks, in the order of the ranks.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = np.zeros(2)[: hvd.rank() + 1]  # one row on rank 0, two on rank 1
        >>> hvd.allgather(tensor).tolist()  # on 2 ranks: [0.0, 0.0, 0.0]
    """
    quick: Array | None = _native.allgather(process_set.native, tensor, True, name)
    if quick is not None:
        return quick
    result: Array = _run(Call(ALLGATHER, process_set, name), [as_array(tensor)])
    return result


def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start to concatenate the arrays of all ranks along the first dimension.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensor: The array that this rank contributes. It may differ between ranks in its first dimension only.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns a new array.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.allgather_async(np.zeros(2) + hvd.rank())
        >>> hvd.synchronize(handle).tolist()  # on 2 ranks: [0.0, 0.0, 1.0, 1.0]
    """
    quick: int | None = _native.allgather(process_set.native, tensor, False, name)
    if quick is not None:
        return quick
    return _begin(Call(ALLGATHER, process_set, name), [as_array(tensor)])


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """Concatenate the arrays of all ranks, for each array of a list, as one unit.

    No operation of the group starts before every rank has submitted the whole group.

    Args:
        tensors: List of arrays. Each may differ between ranks in its first dimension only.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The concatenated arrays, in the order of the list.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> first, second = hvd.grouped_allgather([np.zeros(2) + hvd.rank(), np.zeros(2)])
        >>> first.tolist()  # on 2 ranks: [0.0, 0.0, 1.0, 1.0]
    """
    arrays = [as_array(tensor) for tensor in tensors]
    return list(_run(Call(ALLGATHER, process_set, name, grouped=True), arrays))


def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to concatenate the arrays of all ranks, for each array of a list, as one unit.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensors: List of arrays. Each may differ between ranks in its first dimension only.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns the concatenated arrays.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.grouped_allgather_async([np.zeros(2) + hvd.rank(), np.zeros(2)])
        >>> hvd.synchronize(handle)[0].tolist()  # on 2 ranks: [0.0, 0.0, 1.0, 1.0]
    """
    arrays = [as_array(tensor) for tensor in tensors]
    return _begin(Call(ALLGATHER, process_set, name, grouped=True), arrays)


# Broadcast


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Send one rank's array to all ranks.

    Args:
        tensor: The root's values. The other ranks pass an array of the same shape and type.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A new array with the root's values.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = np.zeros(2) + hvd.rank()
        >>> hvd.broadcast(tensor, root_rank=1).tolist()  # on 2 ranks: [1.0, 1.0]
    """
    quick: Array | None = _native.broadcast(process_set.native, tensor, False, True, root_rank, name)
    if quick is not None:
        return quick
    result: Array = _run(Call(BROADCAST, process_set, name, root=root_rank), [as_array(tensor)])
    return result


def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to send one rank's array to all ranks.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensor: The root's values. The other ranks pass an array of the same shape and type.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns a new array.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.broadcast_async(np.zeros(2) + hvd.rank(), root_rank=1)
        >>> hvd.synchronize(handle).tolist()  # on 2 ranks: [1.0, 1.0]
    """
    quick: int | None = _native.broadcast(process_set.native, tensor, False, False, root_rank, name)
    if quick is not None:
        return quick
    return _begin(Call(BROADCAST, process_set, name, root=root_rank), [as_array(tensor)])


def broadcast_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Overwrite an array with one rank's values, on all ranks.

    Args:
        tensor: The root's values. On other ranks, an array of the same shape and type that they overwrite.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The array that was passed, with the root's values in it.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = np.zeros(2) + hvd.rank()
        >>> hvd.broadcast_(tensor, root_rank=1).tolist()  # on 2 ranks: [1.0, 1.0]
    """
    quick: Array | None = _native.broadcast(process_set.native, tensor, True, True, root_rank, name)
    if quick is not None:
        return quick
    result: Array = _run(Call(BROADCAST, process_set, name, root=root_rank, in_place=True), [as_target(tensor)])
    return result


def broadcast_async_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to overwrite an array with one rank's values, on all ranks.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensor: The root's values. On other ranks, an array of the same shape and type that they overwrite.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns the array that was passed.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.broadcast_async_(np.zeros(2) + hvd.rank(), root_rank=1)
        >>> hvd.synchronize(handle).tolist()  # on 2 ranks: [1.0, 1.0]
    """
    quick: int | None = _native.broadcast(process_set.native, tensor, True, False, root_rank, name)
    if quick is not None:
        return quick
    return _begin(Call(BROADCAST, process_set, name, root=root_rank, in_place=True), [as_target(tensor)])


# Alltoall


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Send rows of an array to every rank, and receive rows from every rank.

    Args:
        tensor: The rows to send, those for the first rank first.
        splits: Number of rows for each rank, as a list or an array of integers. Rows beyond their sum are not sent. By
            default all ranks get an equal share.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The received rows, in the order of the ranks. If `splits` is given, a tuple of these rows and the number of rows
        from each rank.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = np.array([10, 20])
        >>> hvd.alltoall(tensor).tolist()  # on rank 0 of 2: [10, 10]
    """
    quick = _native.alltoall(process_set.native, tensor, True, splits, name)
    if quick is not None:
        return quick
    output, received = _run(Call(ALLTOALL, process_set, name, splits=splits), [as_array(tensor)])
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to send rows of an array to every rank.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensor: The rows to send, those for the first rank first.
        splits: Number of rows for each rank, as a list or an array of integers. Rows beyond their sum are not sent. By
            default all ranks get an equal share.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns a tuple of the received rows and the number of rows
        from each rank.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.alltoall_async(np.array([10, 20]))
        >>> hvd.synchronize(handle)[0].tolist()  # on rank 0 of 2: [10, 10]
    """
    quick: int | None = _native.alltoall(process_set.native, tensor, False, splits, name)
    if quick is not None:
        return quick
    return _begin(Call(ALLTOALL, process_set, name, splits=splits), [as_array(tensor)])


# Reducescatter


def reducescatter(
    tensor: Any,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Reduce an array over all ranks and return this rank's share of the rows.

    If the rows do not divide evenly, each of the first ranks gets one more.

    Args:
        tensor: The array that this rank contributes. It does not change.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        compression: hvd.Compression.none, hvd.Compression.fp16 or hvd.Compression.bf16 (the type in which
            floating-point values are reduced), or your own subclass of hvd.Compressor.
        op: hvd.Average (the default) or hvd.Sum.
        process_set: The ranks that take part. By default all ranks of the job.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.

    Returns:
        A new array with this rank's rows of the result.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job, or `op` is neither Average nor Sum.

    Example:
        >>> tensor = np.array([[1.0], [2.0]])
        >>> hvd.reducescatter(tensor, op=hvd.Sum).tolist()  # on rank 0 of 2: [[2.0]]
    """
    if compression is _PLAIN:
        quick: Array | None = _native.reducescatter(
            process_set.native, tensor, True, name, op, prescale_factor, postscale_factor
        )
        if quick is not None:
            return quick
    method_in(compression, (), "reducescatter")
    array, ctx = compression.compress(as_array(tensor))
    call = Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor)
    return compression.decompress(_run(call, [array]), ctx)


def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to reduce an array over all ranks, for this rank's share of the rows.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensor: The array that this rank contributes. It does not change.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default) or hvd.Sum.
        process_set: The ranks that take part. By default all ranks of the job.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns this rank's rows of the result.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodInternalError: `op` is neither Average nor Sum.

    Example:
        >>> handle = hvd.reducescatter_async(np.array([[1.0], [2.0]]), op=hvd.Sum)
        >>> hvd.synchronize(handle).tolist()  # on rank 0 of 2: [[2.0]]
    """
    quick: int | None = _native.reducescatter(
        process_set.native, tensor, False, name, op, prescale_factor, postscale_factor
    )
    if quick is not None:
        return quick
    return _begin(Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor), [as_array(tensor)])


def grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """Reduce each array of a list over all ranks, as one unit, and return this rank's shares of the rows.

    No operation of the group starts before every rank has submitted the whole group.

    Args:
        tensors: List of arrays that this rank contributes. They do not change.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        compression: hvd.Compression.none, hvd.Compression.fp16 or hvd.Compression.bf16 (the type in which
            floating-point values are reduced), or your own subclass of hvd.Compressor.
        op: hvd.Average (the default) or hvd.Sum.
        process_set: The ranks that take part. By default all ranks of the job.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.

    Returns:
        This rank's rows of each result, in the order of the list.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job, or `op` is neither Average nor Sum.

    Example:
        >>> (first,) = hvd.grouped_reducescatter([np.array([[1.0], [2.0]])], op=hvd.Sum)
        >>> first.tolist()  # on rank 0 of 2: [[2.0]]
    """
    method_in(compression, (), "grouped_reducescatter")
    compressed = [compression.compress(as_array(tensor)) for tensor in tensors]
    arrays = [array for array, _ in compressed]
    call = Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor, grouped=True)
    results = zip(_run(call, arrays), compressed, strict=True)
    return [compression.decompress(result, ctx) for result, (_, ctx) in results]


def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to reduce each array of a list over all ranks, as one unit, for this rank's shares of the rows.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensors: List of arrays that this rank contributes. They do not change.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default) or hvd.Sum.
        process_set: The ranks that take part. By default all ranks of the job.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns this rank's rows of each result.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodInternalError: `op` is neither Average nor Sum.

    Example:
        >>> handle = hvd.grouped_reducescatter_async([np.array([[1.0], [2.0]])], op=hvd.Sum)
        >>> hvd.synchronize(handle)[0].tolist()  # on rank 0 of 2: [[2.0]]
    """
    call = Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor, grouped=True)
    return _begin(call, [as_array(tensor) for tensor in tensors])


# Barrier and join


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the process set has called this function.

    Args:
        process_set: The ranks that take part. By default all ranks of the job.

    Raises:
        ValueError: This rank is not a member of the process set.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> hvd.barrier()
        >>> print('all ranks are here')
    """
    _collectives.barrier(process_set)


def join(device: int = -1) -> int:
    """Take part in the other ranks' allreduces with zeros, until all ranks have called this function.

    Call it on a rank that has no more data. Operations other than allreduce fail until all ranks have joined.

    Args:
        device: Has no effect.

    Returns:
        The rank that joined last.

    Raises:
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> last = hvd.join()
        >>> last in range(hvd.size())  # on 2 ranks: True
    """
    return _collectives.join()


# Point to point


def send(tensor: Any, dst: int, tag: int = 0) -> None:
    """Send an array to one rank, which receives it with recv().

    Args:
        tensor: The values to send.
        dst: The rank that receives.
        tag: Number that the receiver passes too.

    Raises:
        ValueError: An argument is not valid.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = np.zeros(2) + hvd.rank()
        >>> hvd.send(tensor, 1) if hvd.rank() == 0 else hvd.recv(tensor, 0).tolist()  # on rank 1 of 2: [0.0, 0.0]
    """
    _finish(_collectives.send(as_array(tensor), dst, tag))


def send_async(tensor: Any, dst: int, tag: int = 0) -> int:
    """Start to send an array to one rank.

    Do not change the array before the operation has completed.

    Args:
        tensor: The values to send.
        dst: The rank that receives.
        tag: Number that the receiver passes too.

    Returns:
        A handle for poll() and synchronize().

    Raises:
        ValueError: An argument is not valid.

    Example:
        >>> start = hvd.recv_async if hvd.rank() else hvd.send_async
        >>> hvd.synchronize(start(np.zeros(2) + hvd.rank(), 1 - hvd.rank())).tolist()  # on 2 ranks: [0.0, 0.0]
    """
    return _add(_collectives.send(as_array(tensor), dst, tag))


def recv(tensor: Array, src: int, tag: int = 0) -> Array:
    """Overwrite an array with values that one rank sends with send().

    Args:
        tensor: The array to overwrite. It must have the size of the one that is sent.
        src: The rank that sends.
        tag: Number that the sender passes too.

    Returns:
        The array that was passed.

    Raises:
        ValueError: An argument is not valid.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = np.zeros(2) + hvd.rank()
        >>> hvd.recv(tensor, 0).tolist() if hvd.rank() == 1 else hvd.send(tensor, 1)  # on rank 1 of 2: [0.0, 0.0]
    """
    result: Array = _finish(_collectives.recv(as_target(tensor), src, tag))
    return result


def recv_async(tensor: Array, src: int, tag: int = 0) -> int:
    """Start to overwrite an array with values that one rank sends.

    Do not use the array before the operation has completed.

    Args:
        tensor: The array to overwrite. It must have the size of the one that is sent.
        src: The rank that sends.
        tag: Number that the sender passes too.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns the array that was passed.

    Raises:
        ValueError: An argument is not valid.

    Example:
        >>> start = hvd.send_async if hvd.rank() else hvd.recv_async
        >>> hvd.synchronize(start(np.zeros(2) + hvd.rank(), 1 - hvd.rank())).tolist()  # on 2 ranks: [1.0, 1.0]
    """
    return _add(_collectives.recv(as_target(tensor), src, tag))
