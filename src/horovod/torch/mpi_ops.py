# SPDX-License-Identifier: Apache-2.0
"""The operations of the PyTorch door: names, signatures, defaults and errors of Horovod's contract.

Functions that end in an underscore write into the tensor they get.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.common.basics import HorovodBasics
from horovod.common.context import default_context
from horovod.common.ops import Collectives
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.rules import Adasum as Adasum
from horovod.common.rules import Average as Average
from horovod.common.rules import Max as Max
from horovod.common.rules import Min as Min
from horovod.common.rules import Product as Product
from horovod.common.rules import Sum as Sum
from horovod.common.rules import resolve_op
from horovod.torch.adapter import Tensor, TorchAdapter
from horovod.torch.compression import Compression, Compressor

_basics = HorovodBasics()
init = _basics.init
shutdown = _basics.shutdown
is_initialized = _basics.is_initialized
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline
size = _basics.size
local_size = _basics.local_size
cross_size = _basics.cross_size
rank = _basics.rank
local_rank = _basics.local_rank
cross_rank = _basics.cross_rank
is_homogeneous = _basics.is_homogeneous
mpi_threads_supported = _basics.mpi_threads_supported
mpi_enabled = _basics.mpi_enabled
mpi_built = _basics.mpi_built
gloo_enabled = _basics.gloo_enabled
gloo_built = _basics.gloo_built
nccl_built = _basics.nccl_built
ddl_built = _basics.ddl_built
ccl_built = _basics.ccl_built
cuda_built = _basics.cuda_built
rocm_built = _basics.rocm_built

_collectives: Collectives[Tensor] = Collectives(default_context, TorchAdapter())
_finish = default_context.handles.finish
_add = default_context.handles.add


def poll(handle: int) -> bool:
    """Whether an asynchronous operation is done, so that synchronize would not block."""
    return default_context.handles.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous operation and give its result; None if that was given before."""
    return default_context.handles.synchronize(handle)


# Allreduce


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce a tensor over all ranks of the set (op: Average unless given) into a new tensor."""
    op = resolve_op(op, average)
    tensor, ctx = compression.compress(tensor)
    pending = _collectives.allreduce(
        tensor, False, name, op, prescale_factor, postscale_factor, process_set, will_wait=True
    )
    return compression.decompress(_finish(pending), ctx)


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
    op = resolve_op(op, average)
    return _add(
        _collectives.allreduce(tensor, False, name, op, prescale_factor, postscale_factor, process_set, will_wait=False)
    )


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
    op = resolve_op(op, average)
    pending = _collectives.allreduce(
        tensor, True, name, op, prescale_factor, postscale_factor, process_set, will_wait=True
    )
    result: Tensor = _finish(pending)
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
    op = resolve_op(op, average)
    return _add(
        _collectives.allreduce(tensor, True, name, op, prescale_factor, postscale_factor, process_set, will_wait=False)
    )


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
    op = resolve_op(op, average)
    compressed = [compression.compress(tensor) for tensor in tensors]
    tensors = [tensor for tensor, _ in compressed]
    pending = _collectives.grouped_allreduce(
        tensors, False, name, op, prescale_factor, postscale_factor, process_set, will_wait=True
    )
    results = zip(_finish(pending), compressed, strict=True)
    return [compression.decompress(result, ctx) for result, (_, ctx) in results]


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
    op = resolve_op(op, average)
    return _add(
        _collectives.grouped_allreduce(
            tensors, False, name, op, prescale_factor, postscale_factor, process_set, will_wait=False
        )
    )


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
    op = resolve_op(op, average)
    pending = _collectives.grouped_allreduce(
        tensors, True, name, op, prescale_factor, postscale_factor, process_set, will_wait=True
    )
    return list(_finish(pending))


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
    op = resolve_op(op, average)
    return _add(
        _collectives.grouped_allreduce(
            tensors, True, name, op, prescale_factor, postscale_factor, process_set, will_wait=False
        )
    )


# Allgather


def allgather(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Arrays of all ranks, one after the other along the first dimension, in which they may differ."""
    result: Tensor = _finish(_collectives.allgather(tensor, name, process_set, will_wait=True))
    return result


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start an allgather."""
    return _add(_collectives.allgather(tensor, name, process_set, will_wait=False))


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Allgather each tensor of a list, as one unit."""
    return list(_finish(_collectives.grouped_allgather(tensors, name, process_set, will_wait=True)))


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start an allgather of each tensor of a list; one handle for all of them."""
    return _add(_collectives.grouped_allgather(tensors, name, process_set, will_wait=False))


# Broadcast


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The tensor of the (global) rank `root_rank`, as a new tensor."""
    result: Tensor = _finish(_collectives.broadcast(tensor, False, root_rank, name, process_set, will_wait=True))
    return result


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a broadcast."""
    return _add(_collectives.broadcast(tensor, False, root_rank, name, process_set, will_wait=False))


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Overwrite the tensor with the root's."""
    result: Tensor = _finish(_collectives.broadcast(tensor, True, root_rank, name, process_set, will_wait=True))
    return result


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a broadcast in place."""
    return _add(_collectives.broadcast(tensor, True, root_rank, name, process_set, will_wait=False))


# Alltoall


def alltoall(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Send rows to every rank: equal shares, or `splits[i]` rows to member i; then (output, received splits)."""
    output, received = _finish(_collectives.alltoall(tensor, splits, name, process_set, will_wait=True))
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start an alltoall; its result is always (output, received splits)."""
    return _add(_collectives.alltoall(tensor, splits, name, process_set, will_wait=False))


# Reducescatter


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
    tensor, ctx = compression.compress(tensor)
    pending = _collectives.reducescatter(
        tensor, name, op, prescale_factor, postscale_factor, process_set, will_wait=True
    )
    return compression.decompress(_finish(pending), ctx)


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reducescatter."""
    return _add(
        _collectives.reducescatter(tensor, name, op, prescale_factor, postscale_factor, process_set, will_wait=False)
    )


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
    pending = _collectives.grouped_reducescatter(
        tensors, name, op, prescale_factor, postscale_factor, process_set, will_wait=True
    )
    results = zip(_finish(pending), compressed, strict=True)
    return [compression.decompress(result, ctx) for result, (_, ctx) in results]


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reducescatter of each tensor of a list; one handle for all of them."""
    return _add(
        _collectives.grouped_reducescatter(
            tensors, name, op, prescale_factor, postscale_factor, process_set, will_wait=False
        )
    )


# Meetings


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the set is here."""
    _finish(_collectives.barrier(process_set, will_wait=True))


def join(device: int = -1) -> int:
    """This rank has no more data: give zeros to the others' allreduces until all have joined; who came last."""
    return _collectives.join()


# Point to point


def send(tensor: Tensor, dst: int, tag: int = 0) -> None:
    """Send a tensor to one rank, which receives it with the same tag."""
    _finish(_collectives.send(tensor, dst, tag))


def send_async(tensor: Tensor, dst: int, tag: int = 0) -> int:
    """Start a send; the tensor must not change until it is done."""
    return _add(_collectives.send(tensor, dst, tag))


def recv(tensor: Tensor, src: int, tag: int = 0) -> Tensor:
    """Overwrite a tensor with what one rank sends, which must have the same size."""
    result: Tensor = _finish(_collectives.recv(tensor, src, tag))
    return result


def recv_async(tensor: Tensor, src: int, tag: int = 0) -> int:
    """Start a receive."""
    return _add(_collectives.recv(tensor, src, tag))


start_allreduces = _collectives.start_allreduces
finish_allreduces = default_context.handles.finish_batch


def sparse_allreduce_async(tensor: Tensor, name: str, op: int, process_set: ProcessSet = global_process_set) -> Any:
    raise NotImplementedError
