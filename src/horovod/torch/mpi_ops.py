# SPDX-License-Identifier: Apache-2.0
"""Operations of the PyTorch API, with the names, signatures, defaults and errors of Horovod.

Functions whose names end in an underscore write into the tensor they get. Functions that compiled code can hold in its
graph first ask whether the compiler is tracing; the others leave the graph. Outside of graphs, functions first try the
native calls, which handle ordinary arguments in a fraction of the time. These return None for other arguments and for
tensors whose gradient autograd has to record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horovod import _engine as mpi_lib  # noqa: F401 - the contract's name for the native library
from horovod.common import door
from horovod.common.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, Call
from horovod.common.compression_methods import CompressionMethod
from horovod.common.door import *  # noqa: F403 - they are the door's own names too
from horovod.common.door import _basics as _basics
from horovod.common.dtypes import AS_IT_IS
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.rules import Average, resolve_op
from horovod.common.util import check_installed_version as check_installed_version
from horovod.common.util import get_average_backwards_compatibility_fun as get_average_backwards_compatibility_fun
from horovod.common.util import gpu_available as gpu_available
from horovod.common.util import num_rank_is_power_2 as num_rank_is_power_2
from horovod.common.wire import wire_of
from horovod.torch import direct
from horovod.torch.adapter import Tensor
from horovod.torch.autograd import HorovodAllgather as HorovodAllgather
from horovod.torch.autograd import HorovodAllreduce as HorovodAllreduce
from horovod.torch.autograd import HorovodAlltoall as HorovodAlltoall
from horovod.torch.autograd import HorovodBroadcast as HorovodBroadcast
from horovod.torch.autograd import HorovodGroupedAllgather as HorovodGroupedAllgather
from horovod.torch.autograd import HorovodGroupedAllreduce as HorovodGroupedAllreduce
from horovod.torch.autograd import HorovodGroupedReducescatter as HorovodGroupedReducescatter
from horovod.torch.autograd import HorovodReducescatter as HorovodReducescatter
from horovod.torch.compressing.bare import compressed_allreduce
from horovod.torch.compression import Compression, Compressor, is_convertible
from horovod.torch.direct import native as _native
from horovod.torch.graph import (
    CALLER_OF_JOINED,
    CALLER_OF_LEFT,
    blocking,
    is_compiling,
    is_traced,
    joins_graph,
    leaves_graph,
    outside_graph,
)
from horovod.torch.point_to_point import recv as recv
from horovod.torch.point_to_point import recv_async as recv_async
from horovod.torch.point_to_point import send as send
from horovod.torch.point_to_point import send_async as send_async
from horovod.torch.sparse import sparse_allreduce

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
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += door.__all__

handle_average_backwards_compatibility = resolve_op


def poll(handle: int) -> bool:
    """Whether an asynchronous operation is done, so that synchronize would not block."""
    if is_traced():
        return outside_graph(poll)(handle)
    return direct.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous operation and return its result; None if it was returned before."""
    if is_traced():
        return outside_graph(synchronize)(handle)
    return direct.synchronize(handle)


# Allreduce


@joins_graph
def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] | CompressionMethod = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce a tensor over all ranks of the set (op: Average by default) into a new tensor.

    With compression=hvd.Compression.int8(), what leaves a host travels as int8.
    """
    if compression is Compression.none and not is_traced():
        quick: Tensor | None = _native.allreduce(
            process_set.native, tensor, False, True, name, average, op, prescale_factor, postscale_factor
        )
        if quick is not None:
            return quick
    op = resolve_op(op, average, CALLER_OF_JOINED)
    if isinstance(compression, CompressionMethod):
        compress = outside_graph(compressed_allreduce) if is_traced() else compressed_allreduce
        return compress(tensor, compression, name, op, prescale_factor, postscale_factor, process_set)
    wire = AS_IT_IS if is_compiling() else wire_of(compression)
    if wire and is_convertible(tensor):
        call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, wire=wire)
        carried: Tensor = direct.run(call, [tensor.contiguous()])
        return carried
    tensor, ctx = compression.compress(tensor)
    result = blocking().allreduce(tensor, name, op, prescale_factor, postscale_factor, process_set)
    return compression.decompress(result, ctx)


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an allreduce; the handle is for poll and synchronize."""
    if is_traced():
        return outside_graph(allreduce_async)(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    quick: int | None = _native.allreduce(
        process_set.native, tensor, False, False, name, average, op, prescale_factor, postscale_factor
    )
    if quick is not None:
        return quick
    op = resolve_op(op, average)
    return direct.begin(Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor), [tensor])


@joins_graph
def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Allreduce in place: the tensor is overwritten and returned."""
    if not is_traced():
        quick: Tensor | None = _native.allreduce(
            process_set.native, tensor, True, True, name, average, op, prescale_factor, postscale_factor
        )
        if quick is not None:
            return quick
    op = resolve_op(op, average, CALLER_OF_JOINED)
    result: Tensor = blocking().allreduce_(tensor, name, op, prescale_factor, postscale_factor, process_set)
    return result


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an allreduce in place."""
    if is_traced():
        return outside_graph(allreduce_async_)(
            tensor, average, name, op, prescale_factor, postscale_factor, process_set
        )
    quick: int | None = _native.allreduce(
        process_set.native, tensor, True, False, name, average, op, prescale_factor, postscale_factor
    )
    if quick is not None:
        return quick
    op = resolve_op(op, average)
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, in_place=True)
    return direct.begin(call, [tensor])


@joins_graph
def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Allreduce a list of tensors as one unit."""
    op = resolve_op(op, average, CALLER_OF_JOINED)
    wire = AS_IT_IS if is_compiling() else wire_of(compression)
    if wire and all(map(is_convertible, tensors)):
        call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, grouped=True, wire=wire)
        return list(direct.run(call, [tensor.contiguous() for tensor in tensors]))
    compressed = [compression.compress(tensor) for tensor in tensors]
    tensors = [tensor for tensor, _ in compressed]
    results = blocking().grouped_allreduce(tensors, name, op, prescale_factor, postscale_factor, process_set)
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, compressed, strict=True)]


@leaves_graph
def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an allreduce of a list of tensors; one handle for all of them."""
    op = resolve_op(op, average, CALLER_OF_LEFT)
    return direct.begin(
        Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, grouped=True), tensors
    )


@joins_graph
def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Allreduce a list of tensors in place."""
    op = resolve_op(op, average, CALLER_OF_JOINED)
    results: list[Tensor] = blocking().grouped_allreduce_(
        tensors, name, op, prescale_factor, postscale_factor, process_set
    )
    return results


@leaves_graph
def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an allreduce of a list of tensors in place."""
    op = resolve_op(op, average, CALLER_OF_LEFT)
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, grouped=True, in_place=True)
    return direct.begin(call, tensors)


@leaves_graph
def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Start the allreduce (Average or Sum) of a sparse tensor; call what is returned to wait and get the result."""
    return sparse_allreduce(tensor, name, op, process_set)


# Allgather


@joins_graph
def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Arrays of all ranks, one after the other along the first dimension, in which they may differ."""
    if not is_traced():
        quick: Tensor | None = _native.allgather(process_set.native, tensor, True, name)
        if quick is not None:
            return quick
    result: Tensor = blocking().allgather(tensor, name, process_set)
    return result


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start an allgather."""
    if is_traced():
        return outside_graph(allgather_async)(tensor, name, process_set)
    quick: int | None = _native.allgather(process_set.native, tensor, False, name)
    if quick is not None:
        return quick
    return direct.begin(Call(ALLGATHER, process_set, name), [tensor])


@joins_graph
def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Allgather each tensor of a list, as one unit."""
    results: list[Tensor] = blocking().grouped_allgather(tensors, name, process_set)
    return results


@leaves_graph
def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start an allgather of each tensor of a list; one handle for all of them."""
    return direct.begin(Call(ALLGATHER, process_set, name, grouped=True), tensors)


# Broadcast


@joins_graph
def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The tensor of the (global) rank `root_rank`, as a new tensor."""
    if not is_traced():
        quick: Tensor | None = _native.broadcast(process_set.native, tensor, False, True, root_rank, name)
        if quick is not None:
            return quick
    result: Tensor = blocking().broadcast(tensor, root_rank, name, process_set)
    return result


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a broadcast."""
    if is_traced():
        return outside_graph(broadcast_async)(tensor, root_rank, name, process_set)
    quick: int | None = _native.broadcast(process_set.native, tensor, False, False, root_rank, name)
    if quick is not None:
        return quick
    return direct.begin(Call(BROADCAST, process_set, name, root=root_rank), [tensor])


@joins_graph
def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Overwrite the tensor with the root's."""
    if not is_traced():
        quick: Tensor | None = _native.broadcast(process_set.native, tensor, True, True, root_rank, name)
        if quick is not None:
            return quick
    result: Tensor = blocking().broadcast_(tensor, root_rank, name, process_set)
    return result


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a broadcast in place."""
    if is_traced():
        return outside_graph(broadcast_async_)(tensor, root_rank, name, process_set)
    quick: int | None = _native.broadcast(process_set.native, tensor, True, False, root_rank, name)
    if quick is not None:
        return quick
    return direct.begin(Call(BROADCAST, process_set, name, root=root_rank, in_place=True), [tensor])


# Alltoall


@joins_graph
def alltoall(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Send rows to every rank: equal shares, or `splits[i]` rows to member i; then (output, received splits)."""
    if not is_traced():
        quick = _native.alltoall(process_set.native, tensor, True, splits, name)
        if quick is not None:
            return quick
    output, received = blocking().alltoall(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start an alltoall; its result is always (output, received splits)."""
    if is_traced():
        return outside_graph(alltoall_async)(tensor, splits, name, process_set)
    quick: int | None = _native.alltoall(process_set.native, tensor, False, splits, name)
    if quick is not None:
        return quick
    return direct.begin(Call(ALLTOALL, process_set, name, splits=splits), [tensor])


# Reducescatter


@joins_graph
def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce a tensor over all ranks; each gets its share of the rows, the first ranks one more if uneven."""
    if compression is Compression.none and not is_traced():
        quick: Tensor | None = _native.reducescatter(
            process_set.native, tensor, True, name, op, prescale_factor, postscale_factor
        )
        if quick is not None:
            return quick
    tensor, ctx = compression.compress(tensor)
    result = blocking().reducescatter(tensor, name, op, prescale_factor, postscale_factor, process_set)
    return compression.decompress(result, ctx)


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reducescatter."""
    if is_traced():
        return outside_graph(reducescatter_async)(tensor, name, op, process_set, prescale_factor, postscale_factor)
    quick: int | None = _native.reducescatter(
        process_set.native, tensor, False, name, op, prescale_factor, postscale_factor
    )
    if quick is not None:
        return quick
    return direct.begin(Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor), [tensor])


@joins_graph
def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Reducescatter each tensor of a list, as one unit."""
    compressed = [compression.compress(tensor) for tensor in tensors]
    tensors = [tensor for tensor, _ in compressed]
    results = blocking().grouped_reducescatter(tensors, name, op, prescale_factor, postscale_factor, process_set)
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, compressed, strict=True)]


@leaves_graph
def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reducescatter of each tensor of a list; one handle for all of them."""
    call = Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor, grouped=True)
    return direct.begin(call, tensors)


# Barrier and join


@leaves_graph
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the set is here."""
    direct.host.barrier(process_set)


@leaves_graph
def join(device: int = -1) -> int:
    """No more data here: contribute zeros to allreduces until all ranks have joined; the rank that joined last.

    `device` is the GPU on which this rank takes part in reductions of CUDA tensors if it has had none itself so far; -1
    means the current one.
    """
    return direct.join(device)
