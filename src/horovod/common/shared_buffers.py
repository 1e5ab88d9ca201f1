# SPDX-License-Identifier: Apache-2.0
"""Memory for tensors in this rank's shared memory, where the other ranks of the host reach it.

An in-place allreduce of tensors that lie in it on every rank is not staged: twice as fast or more. Memory belongs to
the generation that allocated it: after a shutdown it can still be read and written, but collectives of a new generation
treat it like any other memory.
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
    """`nbytes` of zeros on a page boundary; ordinary memory where there is no shared memory, or no room in it.

    Whatever looks at the array (a view, np.frombuffer, torch.frombuffer) keeps the memory; it goes with the last one.
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
    """A new array in such memory."""
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise ValueError("Python objects cannot lie in shared memory; pass a numeric dtype")
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    count = int(np.prod(extents, dtype=np.int64)) if extents else 1
    return allocate(context, count * kind.itemsize).view(kind).reshape(extents)
