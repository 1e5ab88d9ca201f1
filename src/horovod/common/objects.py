# SPDX-License-Identifier: Apache-2.0
"""Exchange of Python objects by collectives: objects are pickled, and ranks exchange the sizes before the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from horovod.common import serialization
from horovod.common.arrays import Array, NumpyAdapter
from horovod.common.calls import ALLGATHER, BROADCAST, Call
from horovod.common.context import default_context
from horovod.common.exceptions import HorovodInternalError
from horovod.common.ops import Collectives
from horovod.common.process_set import ProcessSet, global_process_set

_collectives: Collectives[Array] = Collectives(default_context, NumpyAdapter())
_start, _finish = _collectives.start, _collectives.handles.finish

_FAILED = -1  # Sent instead of a size by a rank that could not pickle its object, so that no rank waits for the bytes


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Send one rank's Python object to all ranks.

    The object is pickled with cloudpickle. Threads that broadcast objects at the same time in one process set need
    names of their own.

    Args:
        obj: The root's object. The other ranks may pass anything.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this call. By default 'broadcast_object'.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The root's object. On the root it is the object itself, on other ranks a copy.

    Raises:
        HorovodInternalError: The root could not pickle its object, or a rank failed.

    Example:
        >>> config = hvd.broadcast_object({'lr': 0.1} if hvd.rank() == 0 else None)
        >>> config['lr']  # on 2 ranks: 0.1
    """
    name = name or "broadcast_object"
    is_root = default_context.topology.rank == root_rank
    data, failure = _pickle(obj) if is_root else (_NO_BYTES, None)
    size = np.array([_FAILED if failure else data.size], np.int64)
    _finish(_start(Call(BROADCAST, process_set, f"{name}.sz", root=root_rank, in_place=True), [size], will_wait=True))
    if failure:
        raise failure
    if size[0] == _FAILED:
        raise HorovodInternalError(f"broadcast_object {name!r}: rank {root_rank} could not pickle its object")
    if not is_root:
        data = np.empty(int(size[0]), np.uint8)
    call = Call(BROADCAST, process_set, f"{name}.t", root=root_rank, in_place=not is_root)
    result = _finish(_start(call, [data], will_wait=True))
    return obj if is_root else serialization.loads(result.tobytes())


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Gather one Python object from each rank.

    The objects are pickled with cloudpickle. Threads that gather objects at the same time in one process set need names
    of their own.

    Args:
        obj: Any object that can be pickled.
        name: Name under which the ranks match this call. By default 'allgather_object'.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The objects of all ranks, in the order of the ranks. Each is a copy, also this rank's own.

    Raises:
        HorovodInternalError: A rank could not pickle its object, or failed.

    Example:
        >>> found = hvd.allgather_object({'rank': hvd.rank()})
        >>> [one['rank'] for one in found]  # on 2 ranks: [0, 1]
    """
    name = name or "allgather_object"
    data, failure = _pickle(obj)
    size = np.array([_FAILED if failure else data.size], np.int64)
    sizes = _finish(_start(Call(ALLGATHER, process_set, f"{name}.sz"), [size], will_wait=True))
    if failure:
        raise failure
    failed = [index for index, size in enumerate(sizes) if size == _FAILED]
    if failed:
        raise HorovodInternalError(
            f"allgather_object {name!r}: members {failed} of the set could not pickle their objects"
        )
    everything = _finish(_start(Call(ALLGATHER, process_set, f"{name}.t"), [data], will_wait=True))
    ends = np.cumsum(sizes)
    return [serialization.loads(everything[end - size : end].tobytes()) for size, end in zip(sizes, ends, strict=True)]


_NO_BYTES = np.empty(0, np.uint8)


def _pickle(obj: Any) -> tuple[Array, Exception | None]:
    try:
        return np.frombuffer(serialization.dumps(obj), np.uint8), None
    # A user's __reduce__ may raise anything; the caller re-raises it after it has informed the other ranks.
    except Exception as error:
        return _NO_BYTES, error
