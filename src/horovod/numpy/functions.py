# SPDX-License-Identifier: Apache-2.0
"""Functions built on the operations: exchange of objects, and broadcast of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from horovod.common.arrays import Array
from horovod.common.objects import allgather_object as allgather_object
from horovod.common.objects import broadcast_object as broadcast_object
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.numpy.mpi_ops import broadcast_async_, synchronize


def broadcast_parameters(
    params: Mapping[str, Array] | Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite arrays with those of one rank.

    Args:
        params: A dict of arrays, or a list of arrays or of (name, array). All ranks pass the same shapes.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        process_set: The ranks that take part. By default all ranks of the job.

    Raises:
        ValueError: `params` is neither a dict nor a list.
        HorovodMismatchError: The arrays of the ranks differ in shape or type.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> weights = {'w': np.zeros(2) + hvd.rank()}
        >>> hvd.broadcast_parameters(weights, root_rank=0)  # weights['w'] is now array([0., 0.]) on all ranks
    """
    handles = [broadcast_async_(array, root_rank, name, process_set) for name, array in _named(params)]
    for handle in handles:
        synchronize(handle)


def _named(params: Any) -> list[tuple[str, Array]]:
    if isinstance(params, Mapping):
        return sorted(params.items())
    if not isinstance(params, (list, tuple)):
        raise ValueError(f"broadcast_parameters takes a dict or a list of arrays, not {type(params).__name__}")
    return [item if isinstance(item, tuple) else (f"parameter.{index}", item) for index, item in enumerate(params)]
