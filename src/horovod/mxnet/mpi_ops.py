# SPDX-License-Identifier: Apache-2.0
"""The operations of the MXNet door: names, signatures, defaults and errors of Horovod's contract.

All return at once, as MXNet's own functions do; a failure is raised where a result is waited for (wait_to_read,
asnumpy, mx.nd.waitall). Functions that end in an underscore write into the array they get. `priority` is MXNet's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.common.door import *  # noqa: F403 - they are the door's own names too
from horovod.common.process_sets import ProcessSet as ProcessSet
from horovod.common.process_sets import add_process_set as add_process_set
from horovod.common.process_sets import global_process_set
from horovod.common.process_sets import remove_process_set as remove_process_set
from horovod.common.rules import Adasum as Adasum
from horovod.common.rules import Average as Average
from horovod.common.rules import Max as Max
from horovod.common.rules import Min as Min
from horovod.common.rules import Product as Product
from horovod.common.rules import Sum as Sum
from horovod.common.rules import resolve_op
from horovod.common.util import check_installed_version as check_installed_version
from horovod.common.util import get_average_backwards_compatibility_fun as get_average_backwards_compatibility_fun
from horovod.common.util import get_ext_suffix as get_ext_suffix
from horovod.mxnet import queue
from horovod.mxnet.adapter import NDArray
from horovod.mxnet.collectives import QueuedCollectives, plain

dll_path = queue.LIBRARY_PATH
MPI_MXNET_LIB_CTYPES = queue.library
handle_average_backwards_compatibility = resolve_op


_collectives = QueuedCollectives()


def shutdown() -> None:  # type: ignore[no-redef]  # instead of the other doors'
    """Leave the job, after what is queued has run."""
    queue.leave()


def _at(priority: int) -> QueuedCollectives:
    _collectives.queue.priority = priority
    return _collectives


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
    return (
        _at(priority)
        .allreduce(tensor, False, name, op, prescale_factor, postscale_factor, process_set, will_wait=False)
        .output
    )


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
    return (
        _at(priority)
        .allreduce(tensor, True, name, op, prescale_factor, postscale_factor, process_set, will_wait=False)
        .output
    )


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
    pending = _at(priority).grouped_allreduce(
        tensors, False, name, op, prescale_factor, postscale_factor, process_set, will_wait=False
    )
    return list(pending.output)


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
    pending = _at(priority).grouped_allreduce(
        tensors, True, name, op, prescale_factor, postscale_factor, process_set, will_wait=False
    )
    return list(pending.output)


# Movements


def allgather(
    tensor: NDArray, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> NDArray:
    """Arrays of all ranks, one after the other along the first dimension, in which they may differ."""
    return _at(priority).allgather(plain(tensor), name, process_set, will_wait=False).output


def grouped_allgather(
    tensors: Sequence[NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[NDArray]:
    """Allgather each array of a list, as one unit."""
    return list(
        _at(priority)
        .grouped_allgather([plain(tensor) for tensor in tensors], name, process_set, will_wait=False)
        .output
    )


def broadcast(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """The array of the (global) rank `root_rank`, as a new array."""
    return _at(priority).broadcast(tensor, False, root_rank, name, process_set, will_wait=False).output


def broadcast_(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """Overwrite the array with the root's."""
    return _at(priority).broadcast(tensor, True, root_rank, name, process_set, will_wait=False).output


def alltoall(
    tensor: NDArray,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to every rank: equal shares, or `splits[i]` rows to member i; then (output, received splits)."""
    output, received = _at(priority).alltoall(plain(tensor), splits, name, process_set, will_wait=False).output
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
    return (
        _at(priority)
        .reducescatter(plain(tensor), name, op, prescale_factor, postscale_factor, process_set, will_wait=False)
        .output
    )


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
    pending = _at(priority).grouped_reducescatter(
        [plain(tensor) for tensor in tensors], name, op, prescale_factor, postscale_factor, process_set, will_wait=False
    )
    return list(pending.output)
