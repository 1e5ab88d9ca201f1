# SPDX-License-Identifier: Apache-2.0
"""The operations of the NumPy door: names, signatures, defaults and errors as in horovod.torch, on NumPy arrays.

Out-of-place functions also take lists and scalars; those that end in an underscore write into the array they get.
Each function asks the native calls first, which take ordinary arguments at a third of the time and say None to others.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from horovod._engine import ArrayCalls
from horovod.common import shared_buffers
from horovod.common.arrays import Array, NumpyAdapter, as_array, as_target, reader
from horovod.common.compression import Compression, Compressor
from horovod.common.context import default_context
from horovod.common.door import *  # noqa: F403 - they are the door's own names too
from horovod.common.handles import Pending, translate
from horovod.common.ops import Collectives
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.rules import Adasum as Adasum
from horovod.common.rules import Average as Average
from horovod.common.rules import Max as Max
from horovod.common.rules import Min as Min
from horovod.common.rules import Product as Product
from horovod.common.rules import Sum as Sum
from horovod.common.rules import resolve_op
from horovod.common.wire import wire_of

_collectives: Collectives[Array] = Collectives(default_context, NumpyAdapter())
_finish = default_context.handles.finish
_native = ArrayCalls(reader, default_context.handles.plain, translate)
_PLAIN = Compression.none

poll = default_context.handles.poll
synchronize = default_context.handles.synchronize


def _add(pending: Pending) -> int:
    """A handle for an operation whose arrays must stay as they are: NumPy resizes none that has a weak reference."""
    arrays = pending.keep if isinstance(pending.keep, tuple) else (pending.keep,)
    references = [weakref.ref(array) for array in arrays]
    pending.lies_still = lambda: all(reference() is not None for reference in references)
    return default_context.handles.add(pending)


def shared_zeros(shape: int | Sequence[int], dtype: Any = float) -> Array:
    """An array of zeros in shared memory: where all ranks of a host reduce such arrays in place, nothing is copied.

    It belongs to this generation: after hvd.shutdown() it is an ordinary array, and a new one is as fast again.
    """
    return shared_buffers.zeros(default_context, shape, dtype)


# Allreduce


def _compress(array: Array, compression: type[Compressor], wire: int) -> tuple[Array, Any]:
    """What the engine carries as `wire` stays as it is, and needs no decompress either."""
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
    wire = wire_of(compression)
    array, ctx = _compress(as_array(tensor), compression, wire)
    pending = _collectives.allreduce(array, False, name, op, prescale_factor, postscale_factor, process_set, True, wire)
    return compression.decompress(_finish(pending), ctx)


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
    array = as_array(tensor)
    return _add(
        _collectives.allreduce(array, False, name, op, prescale_factor, postscale_factor, process_set, will_wait=False)
    )


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
    array = as_target(tensor)
    pending = _collectives.allreduce(
        array, True, name, op, prescale_factor, postscale_factor, process_set, will_wait=True
    )
    result: Array = _finish(pending)
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
    array = as_target(tensor)
    return _add(
        _collectives.allreduce(array, True, name, op, prescale_factor, postscale_factor, process_set, will_wait=False)
    )


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
    wire = wire_of(compression)
    compressed = [_compress(as_array(tensor), compression, wire) for tensor in tensors]
    arrays = [array for array, _ in compressed]
    pending = _collectives.grouped_allreduce(
        arrays, False, name, op, prescale_factor, postscale_factor, process_set, True, wire
    )
    results = zip(_finish(pending), compressed, strict=True)
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
    arrays = [as_array(tensor) for tensor in tensors]
    return _add(
        _collectives.grouped_allreduce(
            arrays, False, name, op, prescale_factor, postscale_factor, process_set, will_wait=False
        )
    )


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
    arrays = [as_target(tensor) for tensor in tensors]
    pending = _collectives.grouped_allreduce(
        arrays, True, name, op, prescale_factor, postscale_factor, process_set, will_wait=True
    )
    return list(_finish(pending))


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
    arrays = [as_target(tensor) for tensor in tensors]
    return _add(
        _collectives.grouped_allreduce(
            arrays, True, name, op, prescale_factor, postscale_factor, process_set, will_wait=False
        )
    )


# Allgather


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """Arrays of all ranks, one after the other along the first dimension, in which they may differ."""
    quick: Array | None = _native.allgather(process_set.native, tensor, True, name)
    if quick is not None:
        return quick
    result: Array = _finish(_collectives.allgather(as_array(tensor), name, process_set, will_wait=True))
    return result


def allgather_async(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start an allgather."""
    quick: int | None = _native.allgather(process_set.native, tensor, False, name)
    if quick is not None:
        return quick
    return _add(_collectives.allgather(as_array(tensor), name, process_set, will_wait=False))


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """Allgather each array of a list, as one unit."""
    arrays = [as_array(tensor) for tensor in tensors]
    return list(_finish(_collectives.grouped_allgather(arrays, name, process_set, will_wait=True)))


def grouped_allgather_async(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start an allgather of each array of a list; one handle for all of them."""
    arrays = [as_array(tensor) for tensor in tensors]
    return _add(_collectives.grouped_allgather(arrays, name, process_set, will_wait=False))


# Broadcast


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """The array of the (global) rank `root_rank`, as a new array."""
    quick: Array | None = _native.broadcast(process_set.native, tensor, False, True, root_rank, name)
    if quick is not None:
        return quick
    result: Array = _finish(
        _collectives.broadcast(as_array(tensor), False, root_rank, name, process_set, will_wait=True)
    )
    return result


def broadcast_async(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a broadcast."""
    quick: int | None = _native.broadcast(process_set.native, tensor, False, False, root_rank, name)
    if quick is not None:
        return quick
    return _add(_collectives.broadcast(as_array(tensor), False, root_rank, name, process_set, will_wait=False))


def broadcast_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Overwrite the array with the root's."""
    quick: Array | None = _native.broadcast(process_set.native, tensor, True, True, root_rank, name)
    if quick is not None:
        return quick
    result: Array = _finish(
        _collectives.broadcast(as_target(tensor), True, root_rank, name, process_set, will_wait=True)
    )
    return result


def broadcast_async_(
    tensor: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a broadcast in place."""
    quick: int | None = _native.broadcast(process_set.native, tensor, True, False, root_rank, name)
    if quick is not None:
        return quick
    return _add(_collectives.broadcast(as_target(tensor), True, root_rank, name, process_set, will_wait=False))


# Alltoall


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Send rows to every rank: equal shares, or `splits[i]` rows to member i; then (output, received splits)."""
    quick = _native.alltoall(process_set.native, tensor, True, splits, name)
    if quick is not None:
        return quick
    output, received = _finish(_collectives.alltoall(as_array(tensor), splits, name, process_set, will_wait=True))
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start an alltoall; its result is always (output, received splits)."""
    quick: int | None = _native.alltoall(process_set.native, tensor, False, splits, name)
    if quick is not None:
        return quick
    return _add(_collectives.alltoall(as_array(tensor), splits, name, process_set, will_wait=False))


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
    array, ctx = compression.compress(as_array(tensor))
    pending = _collectives.reducescatter(
        array, name, op, prescale_factor, postscale_factor, process_set, will_wait=True
    )
    return compression.decompress(_finish(pending), ctx)


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
    array = as_array(tensor)
    return _add(
        _collectives.reducescatter(array, name, op, prescale_factor, postscale_factor, process_set, will_wait=False)
    )


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
    compressed = [compression.compress(as_array(tensor)) for tensor in tensors]
    arrays = [array for array, _ in compressed]
    pending = _collectives.grouped_reducescatter(
        arrays, name, op, prescale_factor, postscale_factor, process_set, will_wait=True
    )
    results = zip(_finish(pending), compressed, strict=True)
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
    arrays = [as_array(tensor) for tensor in tensors]
    return _add(
        _collectives.grouped_reducescatter(
            arrays, name, op, prescale_factor, postscale_factor, process_set, will_wait=False
        )
    )


# Meetings


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the set is here."""
    _finish(_collectives.barrier(process_set, will_wait=True))


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
