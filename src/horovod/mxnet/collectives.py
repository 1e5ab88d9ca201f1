# SPDX-License-Identifier: Apache-2.0
"""Collectives of the MXNet API: those of horovod.common.ops, submitted to MXNet's queue instead of the engine.

MXNet's arrays have their shape from the start. So if a result's shape depends on other ranks (allgather, alltoall),
ranks exchange shapes first, while the caller waits. The data then goes through the queue. If shapes do not fit
together, the caller also waits for the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import mxnet as mx
import numpy as np

from horovod._engine import EngineCall, TensorLocation
from horovod.common import rules
from horovod.common.arrays import Array, NumpyAdapter
from horovod.common.calls import ALLGATHER, ALLTOALL, Call, names_in_group
from horovod.common.context import default_context
from horovod.common.exceptions import HorovodMismatchError
from horovod.common.handles import Pending
from horovod.common.ops import Collectives
from horovod.common.process_sets import Membership, ProcessSet
from horovod.mxnet.adapter import MXNetAdapter, NDArray, empty
from horovod.mxnet.queue import Queue

Kind: TypeAlias = tuple[int, tuple[int, ...]]  # dtype and shape of an array

_sizes: Collectives[Array] = Collectives(default_context, NumpyAdapter())


class QueuedCollectives(Collectives[NDArray]):
    """Collectives that are only queued. The `output` of a Pending is the result, which MXNet computes later."""

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
        told = self._tell_all([(dtype, shape)], full_name, call.process_set)
        output = empty(tensor, (sum(rows for ((_, (rows, *_)),) in told), *shape[1:]))
        place = TensorLocation(dtype, shape, handle, output.handle.value)
        self.queue.submit(member.id, full_name, EngineCall(ALLGATHER), place)
        if not _agree(told):
            output.wait_to_read()  # raises the error of the operation
        return Pending(self.queue, 0, full_name, tensor, output)

    def _grouped_allgather(self, member: Membership, call: Call, tensors: Sequence[NDArray]) -> Pending:
        described = [self._source(tensor) for tensor in tensors]
        if not described:
            raise ValueError(f"{call.operation}: a group needs at least one tensor")
        for _, shape, _ in described:
            rules.check_gather(shape, call.operation)
        full_name = member.full_name(call.operation, call.name)
        told = self._tell_all([(dtype, shape) for _, shape, dtype in described], full_name, call.process_set)
        outputs = [
            empty(tensor, (sum(theirs[index][1][0] for theirs in told), *described[index][1][1:]))
            for index, tensor in enumerate(tensors)
        ]
        names = names_in_group(full_name, len(described))
        locations = [
            TensorLocation(dtype, shape, handle, output.handle.value)
            for (handle, shape, dtype), output in zip(described, outputs, strict=True)
        ]
        self.queue.submit_group(member.id, full_name, names, EngineCall(ALLGATHER), locations)
        if not _agree(told):
            outputs[0].wait_to_read()  # raises the error of the operation
        return Pending(self.queue, 0, full_name, tensors, tuple(outputs))

    def _tell_all(self, mine: list[Kind], full_name: str, process_set: ProcessSet) -> list[list[Kind]]:
        """Return the dtypes and shapes that every rank of the set passes to an allgather, by rank."""
        numbers = _encoded(mine)
        call = Call(ALLGATHER, process_set, f"{full_name}.sizes")
        pending = _sizes.start(call, [np.array([len(numbers), *numbers], np.int64)], will_wait=True)
        left = [int(number) for number in _sizes.handles.finish(pending)]
        told = []
        while left:
            length = left[0]
            told.append(_decoded(left[1 : length + 1]))
            left = left[length + 1 :]
        if any(len(theirs) != len(mine) for theirs in told):
            raise HorovodMismatchError(
                f"{full_name}: ranks pass groups of different lengths, {[len(theirs) for theirs in told]} by rank",
                operation=full_name,
            )
        return told

    def _alltoall(self, member: Membership, call: Call, tensor: NDArray) -> Pending:
        handle, shape, dtype = self._source(tensor)
        sizes = self._split_sizes(call, shape, member)
        full_name = member.full_name(call.operation, call.name)
        messages = [_encoded([(dtype, (size, *shape[1:]))]) for size in sizes]
        lengths = [len(message) for message in messages]
        exchange = _sizes.start(
            Call(ALLTOALL, call.process_set, f"{full_name}.sizes", splits=lengths),
            [np.array([number for message in messages for number in message], np.int64)],
            will_wait=True,
        )
        numbers, theirs = _sizes.handles.finish(exchange)
        told = [_decoded(part.tolist()) for part in np.split(numbers, np.cumsum(theirs)[:-1])]
        received = [rows for ((_, (rows, *_)),) in told]
        output = empty(tensor, (sum(received), *shape[1:]))
        place = TensorLocation(dtype, shape, handle, output.handle.value)
        self.queue.submit(member.id, full_name, EngineCall(ALLTOALL), place, list(sizes))
        if not _agree(told):
            output.wait_to_read()  # raises the error of the operation
        splits = self.adapter.splits_tensor(received, call.splits)
        return Pending(self.queue, 0, full_name, tensor, (output, splits))


def _encoded(kinds: Sequence[Kind]) -> list[int]:
    return [number for dtype, shape in kinds for number in (dtype, len(shape), *shape)]


def _decoded(numbers: Sequence[int]) -> list[Kind]:
    kinds = []
    while numbers:
        dtype, dimensions, *rest = numbers
        kinds.append((dtype, tuple(rest[:dimensions])))
        numbers = rest[dimensions:]
    return kinds


def _agree(told: Sequence[Sequence[Kind]]) -> bool:
    """Return True if the arrays of all ranks differ only in their number of rows.

    If they do not, the engine raises an error with the details.
    """
    return len({tuple((dtype, shape[1:]) for dtype, shape in theirs) for theirs in told}) == 1


def plain(tensor: NDArray) -> NDArray:
    """Return a copy of an array that may have a layout of oneDNN, as convolutions produce it.

    Return any other array itself.
    """
    if not isinstance(tensor, mx.nd.NDArray) or len(tensor.shape) < 3 or tensor.stype != "default":
        return tensor
    output = empty(tensor, tensor.shape)
    with mx.autograd.pause():
        tensor.copyto(output)
    return output
