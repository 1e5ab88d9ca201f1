# SPDX-License-Identifier: Apache-2.0
"""The collectives of this door: those of horovod.common.ops, handed to MXNet's queue instead of the engine.

Arrays have their shape from the start here, so where results depend on what other ranks bring (allgather, alltoall),
the sizes are exchanged first, while the caller waits. The data then goes through the queue like everything else.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import mxnet as mx
import numpy as np

from horovod.common import rules
from horovod.common.arrays import Array, NumpyAdapter
from horovod.common.context import default_context
from horovod.common.handles import Pending
from horovod.common.ops import Collectives
from horovod.common.process_sets import Membership, ProcessSet
from horovod.mxnet.adapter import MXNetAdapter, NDArray, empty
from horovod.mxnet.queue import Queue

if TYPE_CHECKING:
    from horovod._engine import World

_ALLGATHER, _ALLTOALL = 1, 3  # hvd::OpKind
_sizes: Collectives[Array] = Collectives(default_context, NumpyAdapter())


class QueuedCollectives(Collectives[NDArray]):
    """Operations are only queued: `output` of what they return is the result, to be computed as any other of MXNet."""

    def __init__(self) -> None:
        super().__init__(default_context, MXNetAdapter())
        self.queue = Queue()

    def _member(self, process_set: ProcessSet) -> Membership:
        member = copy.copy(super()._member(process_set))
        self.queue.aim(member.world)
        member.world = cast("World", self.queue)
        return member

    def _output_like(self, tensor: NDArray, in_place: bool) -> Any:
        if not in_place and (copied := plain(tensor)) is not tensor:
            tensor, in_place = copied, True
        return super()._output_like(tensor, in_place)

    def allgather(self, tensor: NDArray, name: str | None, process_set: ProcessSet, will_wait: bool) -> Pending:
        member = self._member(process_set)
        handle, shape, dtype = self._source(tensor)
        rules.check_gather(shape, "allgather")
        full_name = member.full_name("allgather", name)
        rows = self._exchange([shape[0]], full_name, process_set)
        output = empty(tensor, (sum(rows), *shape[1:]))
        member.world.submit(member.id, _ALLGATHER, full_name, dtype, shape, handle, output.handle.value)
        return Pending(member.world, 0, full_name, tensor, output)

    def grouped_allgather(
        self, tensors: Sequence[NDArray], name: str | None, process_set: ProcessSet, will_wait: bool
    ) -> Pending:
        member = self._member(process_set)
        described = [self._source(tensor) for tensor in tensors]
        if not described:
            raise ValueError("grouped_allgather: a group needs at least one tensor")
        for _, shape, _ in described:
            rules.check_gather(shape, "grouped_allgather")
        full_name = member.full_name("grouped_allgather", name)
        count = len(described)
        rows = self._exchange([shape[0] for _, shape, _ in described], full_name, process_set)
        outputs = [
            empty(tensor, (sum(rows[index::count]), *described[index][1][1:])) for index, tensor in enumerate(tensors)
        ]
        handles, shapes, dtypes = zip(*described, strict=True)
        names = [f"{full_name}_{index}of{count}" for index in range(1, count + 1)]
        targets = [output.handle.value for output in outputs]
        member.world.submit_group(member.id, _ALLGATHER, full_name, names, dtypes, shapes, handles, targets)
        return Pending(member.world, 0, full_name, tensors, tuple(outputs))

    def _exchange(self, rows: list[int], full_name: str, process_set: ProcessSet) -> list[int]:
        """Every rank's numbers, one rank after the other."""
        pending = _sizes.allgather(np.array(rows, np.int64), f"{full_name}.sizes", process_set, will_wait=True)
        return [int(count) for count in _sizes.handles.finish(pending)]

    def alltoall(
        self, tensor: NDArray, splits: Any, name: str | None, process_set: ProcessSet, will_wait: bool
    ) -> Pending:
        member = self._member(process_set)
        handle, shape, dtype = self._source(tensor)
        wanted = None if splits is None else self.adapter.split_sizes(splits)
        sizes = rules.alltoall_splits(shape, wanted, member.size)
        full_name = member.full_name("alltoall", name)
        sent = np.array(sizes, np.int64)
        exchange = _sizes.alltoall(sent, None, f"{full_name}.sizes", process_set, will_wait=True)
        received = [int(count) for count in _sizes.handles.finish(exchange)[0]]
        output = empty(tensor, (sum(received), *shape[1:]))
        member.world.submit(
            member.id, _ALLTOALL, full_name, dtype, shape, handle, output.handle.value, splits=list(sizes)
        )
        return Pending(member.world, 0, full_name, tensor, (output, self.adapter.splits_tensor(received, splits)))


def plain(tensor: NDArray) -> NDArray:
    """A copy of an array that may lie in a layout of oneDNN's, as convolutions leave it; any other array itself."""
    if not isinstance(tensor, mx.nd.NDArray) or len(tensor.shape) < 3 or tensor.stype != "default":
        return tensor
    output = empty(tensor, tensor.shape)
    with mx.autograd.pause():
        tensor.copyto(output)
    return output
