# SPDX-License-Identifier: Apache-2.0
"""Python objects through collectives: pickled, their sizes first, then their bytes. The same for every door."""

from __future__ import annotations

from typing import Any

import numpy as np

from horovod.common import serialization
from horovod.common.arrays import Array, NumpyAdapter
from horovod.common.context import default_context
from horovod.common.exceptions import HorovodInternalError
from horovod.common.ops import Collectives
from horovod.common.process_sets import ProcessSet, global_process_set

_collectives: Collectives[Array] = Collectives(default_context, NumpyAdapter())
_finish = _collectives.handles.finish

_FAILED = -1  # sent in place of a size by a rank that could not pickle its object, so that nobody waits for its bytes


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object on every rank; on the root the object itself.

    `name` defaults to the name of the object's type and must agree on all ranks: pass one if the types differ.
    """
    name = name or type(obj).__name__
    is_root = default_context.topology.rank == root_rank
    data, failure = _pickle(obj) if is_root else (_NO_BYTES, None)
    size = np.array([_FAILED if failure else data.size], np.int64)
    _finish(_collectives.broadcast(size, True, root_rank, f"{name}.sz", process_set, will_wait=True))
    if failure:
        raise failure
    if size[0] == _FAILED:
        raise HorovodInternalError(f"broadcast_object {name!r}: rank {root_rank} could not pickle its object")
    if not is_root:
        data = np.empty(int(size[0]), np.uint8)
    result = _finish(_collectives.broadcast(data, not is_root, root_rank, f"{name}.t", process_set, will_wait=True))
    return obj if is_root else serialization.loads(result.tobytes())


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, in rank order; every element is a copy, the own one too."""
    name = name or type(obj).__name__
    data, failure = _pickle(obj)
    size = np.array([_FAILED if failure else data.size], np.int64)
    sizes = _finish(_collectives.allgather(size, f"{name}.sz", process_set, will_wait=True))
    if failure:
        raise failure
    failed = [index for index, size in enumerate(sizes) if size == _FAILED]
    if failed:
        raise HorovodInternalError(f"allgather_object {name!r}: members {failed} of the set could not pickle theirs")
    everything = _finish(_collectives.allgather(data, f"{name}.t", process_set, will_wait=True))
    ends = np.cumsum(sizes)
    return [serialization.loads(everything[end - size : end].tobytes()) for size, end in zip(sizes, ends, strict=True)]


_NO_BYTES = np.empty(0, np.uint8)


def _pickle(obj: Any) -> tuple[Array, Exception | None]:
    try:
        return np.frombuffer(serialization.dumps(obj), np.uint8), None
    except Exception as error:  # whatever a user's __reduce__ raises; the caller re-raises it once the others know
        return _NO_BYTES, error
