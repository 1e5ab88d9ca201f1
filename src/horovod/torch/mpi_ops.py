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
    """Return True if an asynchronous operation has completed, so that synchronize() would return at once.

    Args:
        handle: What the asynchronous function returned.

    Returns:
        True if the operation has completed or failed.

    Raises:
        ValueError: The handle is unknown, or synchronize() has returned its result already.

    Example:
        >>> handle = hvd.allreduce_async(torch.zeros(2) + hvd.rank())
        >>> while not hvd.poll(handle): time.sleep(0.001)  # or other work
    """
    if is_traced():
        return outside_graph(poll)(handle)
    return direct.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous operation and return its result.

    Args:
        handle: What the asynchronous function returned.

    Returns:
        The result of the operation. None if the result was returned before, or the handle is unknown.

    Raises:
        HorovodMismatchError: The ranks passed tensors or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.
        ValueError: A tensor of the operation was resized or got other memory in the meantime.

    Example:
        >>> handle = hvd.allreduce_async(torch.zeros(2) + hvd.rank())
        >>> hvd.synchronize(handle).tolist()  # on 2 ranks: [0.5, 0.5]
    """
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
    """Reduce a tensor over all ranks and return the result on every rank.

    Gradients flow through this operation.

    Args:
        tensor: The tensor that this rank contributes. It does not change.
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
        A new tensor with the shape of the input.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed tensors or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = torch.zeros(2) + hvd.rank()
        >>> hvd.allreduce(tensor, op=hvd.Sum).tolist()  # on 2 ranks: [1.0, 1.0]
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
    """Start to reduce a tensor over all ranks.

    Do not change a tensor that an operation uses before the operation has completed.

    Args:
        tensor: The tensor that this rank contributes. It does not change.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns a new tensor.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.allreduce_async(torch.zeros(2) + hvd.rank(), op=hvd.Sum)
        >>> hvd.synchronize(handle).tolist()  # on 2 ranks: [1.0, 1.0]
    """
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
    """Reduce a tensor over all ranks, in place.

    Args:
        tensor: The tensor that this rank contributes. The result overwrites it.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The tensor that was passed, with the result in it.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed tensors or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = torch.zeros(2) + hvd.rank()
        >>> hvd.allreduce_(tensor).tolist()  # on 2 ranks: [0.5, 0.5]
    """
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
    """Start to reduce a tensor over all ranks, in place.

    Do not change a tensor that an operation uses before the operation has completed.

    Args:
        tensor: The tensor that this rank contributes. The result overwrites it.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns the tensor that was passed.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.allreduce_async_(torch.zeros(2) + hvd.rank(), op=hvd.Max)
        >>> hvd.synchronize(handle).tolist()  # on 2 ranks: [1.0, 1.0]
    """
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
    """Reduce each tensor of a list over all ranks, as one unit.

    No operation of the group starts before every rank has submitted the whole group. Gradients flow through this
    operation.

    Args:
        tensors: List of tensors that this rank contributes. They do not change.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        compression: hvd.Compression.none, hvd.Compression.fp16 or hvd.Compression.bf16 (the type in which
            floating-point values are sent), or your own subclass of hvd.Compressor.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The reduced tensors, in the order of the list.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed tensors or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> first, second = hvd.grouped_allreduce([torch.zeros(2) + hvd.rank(), torch.zeros(2)])
        >>> first.tolist()  # on 2 ranks: [0.5, 0.5]
    """
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
    """Start to reduce each tensor of a list over all ranks, as one unit.

    Do not change a tensor that an operation uses before the operation has completed.

    Args:
        tensors: List of tensors that this rank contributes. They do not change.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns the reduced tensors.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.grouped_allreduce_async([torch.zeros(2) + hvd.rank(), torch.zeros(2)])
        >>> hvd.synchronize(handle)[0].tolist()  # on 2 ranks: [0.5, 0.5]
    """
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
    """Reduce each tensor of a list over all ranks, as one unit and in place.

    No operation of the group starts before every rank has submitted the whole group.

    Args:
        tensors: List of tensors that this rank contributes. The results overwrite them.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The tensors that were passed, with the results in them.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed tensors or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensors = [torch.zeros(2) + hvd.rank(), torch.zeros(2)]
        >>> hvd.grouped_allreduce_(tensors)[0].tolist()  # on 2 ranks: [0.5, 0.5]
    """
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
    """Start to reduce each tensor of a list over all ranks, as one unit and in place.

    Do not change a tensor that an operation uses before the operation has completed.

    Args:
        tensors: List of tensors that this rank contributes. The results overwrite them.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns the tensors that were passed.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.grouped_allreduce_async_([torch.zeros(2) + hvd.rank(), torch.zeros(2)])
        >>> hvd.synchronize(handle)[0].tolist()  # on 2 ranks: [0.5, 0.5]
    """
    op = resolve_op(op, average, CALLER_OF_LEFT)
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, grouped=True, in_place=True)
    return direct.begin(call, tensors)


@leaves_graph
def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Start to reduce a sparse tensor over all ranks.

    The ranks gather indices and values; they do not send zeros.

    Args:
        tensor: A tensor of layout torch.sparse_coo. Its dense shape must be equal on all ranks.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average or hvd.Sum.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A function without arguments, which waits for the operation and returns the sparse result.

    Raises:
        ValueError: The tensor is not sparse, or the operation is neither Average nor Sum.

    Example:
        >>> finish = hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), name='eye', op=hvd.Sum)
        >>> finish().to_dense().tolist()  # on 2 ranks: [[2.0, 0.0], [0.0, 2.0]]
    """
    return sparse_allreduce(tensor, name, op, process_set)


# Allgather


@joins_graph
def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Concatenate the tensors of all ranks along the first dimension.

    Gradients flow through this operation.

    Args:
        tensor: The tensor that this rank contributes. It may differ between ranks in its first dimension only.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A new tensor with the rows of all ranks, in the order of the ranks.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed tensors or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = torch.zeros(2)[: hvd.rank() + 1]  # one row on rank 0, two on rank 1
        >>> hvd.allgather(tensor).tolist()  # on 2 ranks: [0.0, 0.0, 0.0]
    """
    if not is_traced():
        quick: Tensor | None = _native.allgather(process_set.native, tensor, True, name)
        if quick is not None:
            return quick
    result: Tensor = blocking().allgather(tensor, name, process_set)
    return result


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start to concatenate the tensors of all ranks along the first dimension.

    Do not change a tensor that an operation uses before the operation has completed.

    Args:
        tensor: The tensor that this rank contributes. It may differ between ranks in its first dimension only.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns a new tensor.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.allgather_async(torch.zeros(2) + hvd.rank())
        >>> hvd.synchronize(handle).tolist()  # on 2 ranks: [0.0, 0.0, 1.0, 1.0]
    """
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
    """Concatenate the tensors of all ranks, for each tensor of a list, as one unit.

    No operation of the group starts before every rank has submitted the whole group. Gradients flow through this
    operation.

    Args:
        tensors: List of tensors. Each may differ between ranks in its first dimension only.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The concatenated tensors, in the order of the list.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed tensors or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> first, second = hvd.grouped_allgather([torch.zeros(2) + hvd.rank(), torch.zeros(2)])
        >>> first.tolist()  # on 2 ranks: [0.0, 0.0, 1.0, 1.0]
    """
    results: list[Tensor] = blocking().grouped_allgather(tensors, name, process_set)
    return results


@leaves_graph
def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to concatenate the tensors of all ranks, for each tensor of a list, as one unit.

    Do not change a tensor that an operation uses before the operation has completed.

    Args:
        tensors: List of tensors. Each may differ between ranks in its first dimension only.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns the concatenated tensors.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.grouped_allgather_async([torch.zeros(2) + hvd.rank(), torch.zeros(2)])
        >>> hvd.synchronize(handle)[0].tolist()  # on 2 ranks: [0.0, 0.0, 1.0, 1.0]
    """
    return direct.begin(Call(ALLGATHER, process_set, name, grouped=True), tensors)


# Broadcast


@joins_graph
def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Send one rank's tensor to all ranks.

    Gradients flow through this operation.

    Args:
        tensor: The root's values. The other ranks pass a tensor of the same shape and type.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A new tensor with the root's values.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed tensors or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = torch.zeros(2) + hvd.rank()
        >>> hvd.broadcast(tensor, root_rank=1).tolist()  # on 2 ranks: [1.0, 1.0]
    """
    if not is_traced():
        quick: Tensor | None = _native.broadcast(process_set.native, tensor, False, True, root_rank, name)
        if quick is not None:
            return quick
    result: Tensor = blocking().broadcast(tensor, root_rank, name, process_set)
    return result


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to send one rank's tensor to all ranks.

    Do not change a tensor that an operation uses before the operation has completed.

    Args:
        tensor: The root's values. The other ranks pass a tensor of the same shape and type.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns a new tensor.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.broadcast_async(torch.zeros(2) + hvd.rank(), root_rank=1)
        >>> hvd.synchronize(handle).tolist()  # on 2 ranks: [1.0, 1.0]
    """
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
    """Overwrite a tensor with one rank's values, on all ranks.

    Args:
        tensor: The root's values. On other ranks, a tensor of the same shape and type that they overwrite.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The tensor that was passed, with the root's values in it.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed tensors or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = torch.zeros(2) + hvd.rank()
        >>> hvd.broadcast_(tensor, root_rank=1).tolist()  # on 2 ranks: [1.0, 1.0]
    """
    if not is_traced():
        quick: Tensor | None = _native.broadcast(process_set.native, tensor, True, True, root_rank, name)
        if quick is not None:
            return quick
    result: Tensor = blocking().broadcast_(tensor, root_rank, name, process_set)
    return result


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to overwrite a tensor with one rank's values, on all ranks.

    Do not change a tensor that an operation uses before the operation has completed.

    Args:
        tensor: The root's values. On other ranks, a tensor of the same shape and type that they overwrite.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns the tensor that was passed.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.broadcast_async_(torch.zeros(2) + hvd.rank(), root_rank=1)
        >>> hvd.synchronize(handle).tolist()  # on 2 ranks: [1.0, 1.0]
    """
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
    """Send rows of a tensor to every rank, and receive rows from every rank.

    Gradients flow through this operation.

    Args:
        tensor: The rows to send, those for the first rank first.
        splits: Number of rows for each rank, as a list or a tensor of integers. Rows beyond their sum are not sent. By
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
        HorovodMismatchError: The ranks passed tensors or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = torch.tensor([10, 20])
        >>> hvd.alltoall(tensor).tolist()  # on rank 0 of 2: [10, 10]
    """
    if not is_traced():
        quick = _native.alltoall(process_set.native, tensor, True, splits, name)
        if quick is not None:
            return quick
    output, received = blocking().alltoall(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to send rows of a tensor to every rank.

    Do not change a tensor that an operation uses before the operation has completed.

    Args:
        tensor: The rows to send, those for the first rank first.
        splits: Number of rows for each rank, as a list or a tensor of integers. Rows beyond their sum are not sent. By
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
        >>> handle = hvd.alltoall_async(torch.tensor([10, 20]))
        >>> hvd.synchronize(handle)[0].tolist()  # on rank 0 of 2: [10, 10]
    """
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
    """Reduce a tensor over all ranks and return this rank's share of the rows.

    If the rows do not divide evenly, each of the first ranks gets one more. Gradients flow through this operation.

    Args:
        tensor: The tensor that this rank contributes. It does not change.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        compression: hvd.Compression.none, hvd.Compression.fp16 or hvd.Compression.bf16 (the type in which
            floating-point values are reduced), or your own subclass of hvd.Compressor.
        op: hvd.Average (the default) or hvd.Sum.
        process_set: The ranks that take part. By default all ranks of the job.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.

    Returns:
        A new tensor with this rank's rows of the result.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed tensors or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job, or `op` is neither Average nor Sum.

    Example:
        >>> tensor = torch.tensor([[1.0], [2.0]])
        >>> hvd.reducescatter(tensor, op=hvd.Sum).tolist()  # on rank 0 of 2: [[2.0]]
    """
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
    """Start to reduce a tensor over all ranks, for this rank's share of the rows.

    Do not change a tensor that an operation uses before the operation has completed.

    Args:
        tensor: The tensor that this rank contributes. It does not change.
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
        >>> handle = hvd.reducescatter_async(torch.tensor([[1.0], [2.0]]), op=hvd.Sum)
        >>> hvd.synchronize(handle).tolist()  # on rank 0 of 2: [[2.0]]
    """
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
    """Reduce each tensor of a list over all ranks, as one unit, and return this rank's shares of the rows.

    No operation of the group starts before every rank has submitted the whole group. Gradients flow through this
    operation.

    Args:
        tensors: List of tensors that this rank contributes. They do not change.
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
        HorovodMismatchError: The ranks passed tensors or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job, or `op` is neither Average nor Sum.

    Example:
        >>> (first,) = hvd.grouped_reducescatter([torch.tensor([[1.0], [2.0]])], op=hvd.Sum)
        >>> first.tolist()  # on rank 0 of 2: [[2.0]]
    """
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
    """Start to reduce each tensor of a list over all ranks, as one unit, for this rank's shares of the rows.

    Do not change a tensor that an operation uses before the operation has completed.

    Args:
        tensors: List of tensors that this rank contributes. They do not change.
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
        >>> handle = hvd.grouped_reducescatter_async([torch.tensor([[1.0], [2.0]])], op=hvd.Sum)
        >>> hvd.synchronize(handle)[0].tolist()  # on rank 0 of 2: [[2.0]]
    """
    call = Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor, grouped=True)
    return direct.begin(call, tensors)


# Barrier and join


@leaves_graph
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
    direct.host.barrier(process_set)


@leaves_graph
def join(device: int = -1) -> int:
    """Take part in the other ranks' allreduces with zeros, until all ranks have called this function.

    Call it on a rank that has no more data. Operations other than allreduce fail until all ranks have joined.

    Args:
        device: The GPU on which this rank takes part in reductions of CUDA tensors, if it has had none itself so far.
            -1 means the current GPU.

    Returns:
        The rank that joined last.

    Raises:
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> last = hvd.join()
        >>> last in range(hvd.size())  # on 2 ranks: True
    """
    return direct.join(device)
