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
from horovod.common.process_sets import ProcessSet, global_process_set

_collectives: Collectives[Array] = Collectives(default_context, NumpyAdapter())
_start, _finish = _collectives.start, _collectives.handles.finish

_FAILED = -1  # Sent instead of a size by a rank that could not pickle its object, so that no rank waits for the bytes


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return the root's object on every rank; on the root the object itself. The other ranks may pass anything.

    `name` must agree on all ranks and defaults to "broadcast_object". Threads that broadcast objects at the same time
    in one process set need names of their own.
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
    """Return the objects of all ranks, in rank order; every element is a copy, the own one too.

    `name` must agree on all ranks and defaults to "allgather_object". Threads that gather objects at the same time in
    one process set need names of their own.
    """
    name = name or "allgather_object"
    data, failure = _pickle(obj)
    size = np.array([_FAILED if failure else data.size], np.int64)
    sizes = _finish(_start(Call(ALLGATHER, process_set, f"{name}.sz"), [size], will_wait=True))
    if failure:
        raise failure
    failed = [index for index, size in enumerate(sizes) if size == _FAILED]
    if failed:
        raise HorovodInternalError(f"allgather_object {name!r}: members {failed} of the set could not pickle theirs")
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
