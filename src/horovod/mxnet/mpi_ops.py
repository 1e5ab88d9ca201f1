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
    """Leave the job, after what is queued has run."""
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
    """Reduce an array over all ranks of the set (op: Average by default) into a new array."""
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
    """Allreduce in place: the array is overwritten and returned."""
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
    """Allreduce a list of arrays as one unit."""
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
    """Allreduce a list of arrays in place."""
    op = _reduce_op(op, average)
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, grouped=True, in_place=True)
    return list(_result(call, tensors, priority))


# Allgather, broadcast, alltoall


def allgather(
    tensor: NDArray, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> NDArray:
    """Arrays of all ranks, one after the other along the first dimension, in which they may differ."""
    return _result(Call(ALLGATHER, process_set, name), [plain(tensor)], priority)


def grouped_allgather(
    tensors: Sequence[NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[NDArray]:
    """Allgather each array of a list, as one unit."""
    call = Call(ALLGATHER, process_set, name, grouped=True)
    return list(_result(call, [plain(tensor) for tensor in tensors], priority))


def broadcast(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """The array of the (global) rank `root_rank`, as a new array."""
    return _result(Call(BROADCAST, process_set, name, root=root_rank), [tensor], priority)


def broadcast_(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """Overwrite the array with the root's."""
    return _result(Call(BROADCAST, process_set, name, root=root_rank, in_place=True), [tensor], priority)


def alltoall(
    tensor: NDArray,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to every rank: equal shares, or `splits[i]` rows to member i; then (output, received splits)."""
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
    """Reduce an array over all ranks; each gets its share of the rows, the first ranks one more if uneven."""
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
    """Reducescatter each array of a list, as one unit."""
    assert op in (Average, Sum), "grouped_reducescatter supports the operations Average and Sum"
    call = Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor, grouped=True)
    return list(_result(call, [plain(tensor) for tensor in tensors], priority))
