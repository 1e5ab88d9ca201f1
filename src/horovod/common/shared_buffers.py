# SPDX-License-Identifier: Apache-2.0
"""Buffers for tensors in shared memory, which the other ranks of the host can access.

If a tensor lies in such a buffer on every rank, an in-place allreduce needs no staging, and takes half the time or
less. A buffer belongs to the generation that allocated it. After a shutdown it can still be read and written, but
collectives of a new generation treat it like ordinary memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from horovod._engine import EngineError
from horovod.common.exceptions import HorovodRuntimeWarning
from horovod.common.handles import translate

if TYPE_CHECKING:
    from horovod.common.context import Context


def allocate(context: Context, nbytes: int) -> npt.NDArray[np.uint8]:
    """Return `nbytes` of zeros on a page boundary, in shared memory if there is any and it has room.

    Every object that refers to the array (a view, np.frombuffer, torch.frombuffer) keeps the memory alive. The last one
    frees it.
    """
    if nbytes < 0:
        raise ValueError(f"nbytes must be a number of bytes, not {nbytes}")
    try:
        memory, shared = context.world.allocate(nbytes)
    except EngineError as error:
        raise translate(error) from None
    if not shared:
        memory[:] = 0
        _explain(context, nbytes)
    return memory


def _explain(context: Context, nbytes: int) -> None:
    if context.topology.local_size == 1 or not context.settings.flag("HOROVOD_SHARED_MEMORY"):
        return
    warnings.warn(
        f"Rank {context.topology.rank} has no room for {nbytes} bytes of shared memory and uses ordinary memory, "
        "which is slower. Give the container more memory (docker run --shm-size), or free arrays; `hvd doctor` shows "
        "what there is.",
        HorovodRuntimeWarning,
        stacklevel=3,
    )


def zeros(context: Context, shape: int | Sequence[int], dtype: npt.DTypeLike = float) -> npt.NDArray[Any]:
    """Return a new array of zeros in shared memory."""
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise ValueError("Python objects cannot lie in shared memory; pass a numeric dtype")
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    count = int(np.prod(extents, dtype=np.int64)) if extents else 1
    return allocate(context, count * kind.itemsize).view(kind).reshape(extents)
