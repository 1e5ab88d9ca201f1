# SPDX-License-Identifier: Apache-2.0
"""The collectives of this door: those of horovod.common.ops, handed to MXNet's queue instead of the engine.

Arrays have their shape from the start here, so where results depend on what other ranks bring (allgather, alltoall),
the sizes are exchanged first, while the caller waits. The data then goes through the queue like everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from horovod.common import rules
from horovod.common.arrays import Array, NumpyAdapter
from horovod.common.calls import ALLGATHER, ALLTOALL, Call
from horovod.common.context import default_context
from horovod.common.handles import Pending
from horovod.common.ops import Collectives, names_in_group
from horovod.common.process_sets import Membership, ProcessSet
from horovod.mxnet.adapter import MXNetAdapter, NDArray, empty
from horovod.mxnet.queue import Queue

_sizes: Collectives[Array] = Collectives(default_context, NumpyAdapter())


class QueuedCollectives(Collectives[NDArray]):
    """Operations are only queued: `output` of what they return is the result, to be computed as any other of MXNet."""

    def __init__(self) -> None:
        super().__init__(default_context, MXNetAdapter())
        self.queue = Queue()

    def start(self, call: Call, tensors: Sequence[NDArray], will_wait: bool = False) -> Pending:
        member = self._member(call.process_set)
        self.queue.aim(member.world)
        if call.kind not in (ALLGATHER, ALLTOALL):
            return self._start_in(self.queue, member, call, tensors, will_wait)
        if call.kind == ALLTOALL:
            (tensor,) = tensors
            return self._alltoall(member, call, tensor)
        if call.grouped:
            return self._grouped_allgather(member, call, tensors)
        (tensor,) = tensors
        return self._allgather(member, call, tensor)

    def _output_like(self, tensor: NDArray, in_place: bool) -> Any:
        if not in_place and (copied := plain(tensor)) is not tensor:
            tensor, in_place = copied, True
        return super()._output_like(tensor, in_place)

    def _allgather(self, member: Membership, call: Call, tensor: NDArray) -> Pending:
        handle, shape, dtype = self._source(tensor)
        rules.check_gather(shape, call.operation)
        full_name = member.full_name(call.operation, call.name)
        rows = self._exchange([shape[0]], full_name, call.process_set)
        output = empty(tensor, (sum(rows), *shape[1:]))
        self.queue.submit(member.id, ALLGATHER, full_name, dtype, shape, handle, output.handle.value)
        return Pending(self.queue, 0, full_name, tensor, output)

    def _grouped_allgather(self, member: Membership, call: Call, tensors: Sequence[NDArray]) -> Pending:
        described = [self._source(tensor) for tensor in tensors]
        if not described:
            raise ValueError(f"{call.operation}: a group needs at least one tensor")
        for _, shape, _ in described:
            rules.check_gather(shape, call.operation)
        full_name = member.full_name(call.operation, call.name)
        count = len(described)
        rows = self._exchange([shape[0] for _, shape, _ in described], full_name, call.process_set)
        outputs = [
            empty(tensor, (sum(rows[index::count]), *described[index][1][1:])) for index, tensor in enumerate(tensors)
        ]
        handles, shapes, dtypes = zip(*described, strict=True)
        names = names_in_group(full_name, count)
        targets = [output.handle.value for output in outputs]
        self.queue.submit_group(member.id, ALLGATHER, full_name, names, dtypes, shapes, handles, targets)
        return Pending(self.queue, 0, full_name, tensors, tuple(outputs))

    def _exchange(self, rows: list[int], full_name: str, process_set: ProcessSet) -> list[int]:
        """Every rank's numbers, one rank after the other."""
        call = Call(ALLGATHER, process_set, f"{full_name}.sizes")
        pending = _sizes.start(call, [np.array(rows, np.int64)], will_wait=True)
        return [int(count) for count in _sizes.handles.finish(pending)]

    def _alltoall(self, member: Membership, call: Call, tensor: NDArray) -> Pending:
        handle, shape, dtype = self._source(tensor)
        sizes = self._split_sizes(call, shape, member)
        full_name = member.full_name(call.operation, call.name)
        sent = np.array(sizes, np.int64)
        exchange = _sizes.start(Call(ALLTOALL, call.process_set, f"{full_name}.sizes"), [sent], will_wait=True)
        received = [int(count) for count in _sizes.handles.finish(exchange)[0]]
        output = empty(tensor, (sum(received), *shape[1:]))
        self.queue.submit(member.id, ALLTOALL, full_name, dtype, shape, handle, output.handle.value, splits=list(sizes))
        splits = self.adapter.splits_tensor(received, call.splits)
        return Pending(self.queue, 0, full_name, tensor, (output, splits))


def plain(tensor: NDArray) -> NDArray:
    """A copy of an array that may lie in a layout of oneDNN's, as convolutions leave it; any other array itself."""
    if not isinstance(tensor, mx.nd.NDArray) or len(tensor.shape) < 3 or tensor.stype != "default":
        return tensor
    output = empty(tensor, tensor.shape)
    with mx.autograd.pause():
        tensor.copyto(output)
    return output
