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
    """An array of zeros in shared memory: where all ranks of a host reduce such arrays in place, nothing is copied.

    It belongs to this generation: after hvd.shutdown() it is an ordinary array, and a new one is as fast again.
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
    """Reduce an array over all ranks of the set (op: Average by default) into a new array."""
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
    """Start an allreduce; the handle is for poll and synchronize."""
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
    """Allreduce in place: the array is overwritten and returned."""
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
    """Start an allreduce in place."""
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
    """Allreduce a list of arrays as one unit."""
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
    """Start an allreduce of a list of arrays; one handle for all of them."""
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
    """Allreduce a list of arrays in place."""
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
    """Start an allreduce of a list of arrays in place."""
    op = resolve_op(op, average)
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, grouped=True, in_place=True)
    return _begin(call, [as_target(tensor) for tensor in tensors])


# Allgather


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """Arrays of all ranks, one after the other along the first dimension, in which they may differ."""
    quick: Array | None = _native.allgather(process_set.native, tensor, True, name)
    if quick is not None:
        return quick
    result: Array = _run(Call(ALLGATHER, process_set, name), [as_array(tensor)])
    return result


def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start an allgather."""
    quick: int | None = _native.allgather(process_set.native, tensor, False, name)
    if quick is not None:
        return quick
    return _begin(Call(ALLGATHER, process_set, name), [as_array(tensor)])


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """Allgather each array of a list, as one unit."""
    arrays = [as_array(tensor) for tensor in tensors]
    return list(_run(Call(ALLGATHER, process_set, name, grouped=True), arrays))


def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start an allgather of each array of a list; one handle for all of them."""
    arrays = [as_array(tensor) for tensor in tensors]
    return _begin(Call(ALLGATHER, process_set, name, grouped=True), arrays)


# Broadcast


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """The array of the (global) rank `root_rank`, as a new array."""
    quick: Array | None = _native.broadcast(process_set.native, tensor, False, True, root_rank, name)
    if quick is not None:
        return quick
    result: Array = _run(Call(BROADCAST, process_set, name, root=root_rank), [as_array(tensor)])
    return result


def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a broadcast."""
    quick: int | None = _native.broadcast(process_set.native, tensor, False, False, root_rank, name)
    if quick is not None:
        return quick
    return _begin(Call(BROADCAST, process_set, name, root=root_rank), [as_array(tensor)])


def broadcast_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Overwrite the array with the root's."""
    quick: Array | None = _native.broadcast(process_set.native, tensor, True, True, root_rank, name)
    if quick is not None:
        return quick
    result: Array = _run(Call(BROADCAST, process_set, name, root=root_rank, in_place=True), [as_target(tensor)])
    return result


def broadcast_async_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a broadcast in place."""
    quick: int | None = _native.broadcast(process_set.native, tensor, True, False, root_rank, name)
    if quick is not None:
        return quick
    return _begin(Call(BROADCAST, process_set, name, root=root_rank, in_place=True), [as_target(tensor)])


# Alltoall


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Send rows to every rank: equal shares, or `splits[i]` rows to member i; then (output, received splits)."""
    quick = _native.alltoall(process_set.native, tensor, True, splits, name)
    if quick is not None:
        return quick
    output, received = _run(Call(ALLTOALL, process_set, name, splits=splits), [as_array(tensor)])
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start an alltoall; its result is always (output, received splits)."""
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
    """Reduce an array over all ranks; each gets its share of the rows, the first ranks one more if uneven."""
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
    """Start a reducescatter."""
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
    """Reducescatter each array of a list, as one unit."""
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
    """Start a reducescatter of each array of a list; one handle for all of them."""
    call = Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor, grouped=True)
    return _begin(call, [as_array(tensor) for tensor in tensors])


# Barrier and join


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the set is here."""
    _collectives.barrier(process_set)


def join(device: int = -1) -> int:
    """No more data here: contribute zeros to allreduces until all ranks have joined; the rank that joined last."""
    return _collectives.join()


# Point to point


def send(tensor: Any, dst: int, tag: int = 0) -> None:
    """Send an array to one rank, which receives it with the same tag."""
    _finish(_collectives.send(as_array(tensor), dst, tag))


def send_async(tensor: Any, dst: int, tag: int = 0) -> int:
    """Start a send; the array must not change until it is done."""
    return _add(_collectives.send(as_array(tensor), dst, tag))


def recv(tensor: Array, src: int, tag: int = 0) -> Array:
    """Overwrite an array with what one rank sends, which must have the same size."""
    result: Array = _finish(_collectives.recv(as_target(tensor), src, tag))
    return result


def recv_async(tensor: Array, src: int, tag: int = 0) -> int:
    """Start a receive."""
    return _add(_collectives.recv(as_target(tensor), src, tag))
