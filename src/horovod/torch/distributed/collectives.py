# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's collectives, each in terms of the engine's.

Where all ranks must give equally much, a rank's share is described to the engine as one row: rows of different length
are then refused by all ranks, and nobody writes past the end of a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.rules import Average, Reduction, Sum
from horovod.torch.distributed.buffers import Buffer, joined, movable, reducible, same_size, spread, units_of
from horovod.torch.distributed.channel import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, Call, Channel
from horovod.torch.distributed.completion import Completion
from horovod.torch.distributed.errors import ProcessGroupMismatchError
from horovod.torch.distributed.reductions import bitwise, engine_reduction
from horovod.torch.distributed.work import Finish, Work

Tensor = torch.Tensor


class Collectives:
    """The collectives of one group. Every method starts its operation and returns it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.completion = Completion()
        self._size = channel.size

    def _work(
        self,
        call: Call,
        handles: Sequence[int],
        results: list[Tensor],
        keep: object = None,
        finish: Finish | None = None,
        source: int = -1,
    ) -> Work:
        return Work(self.channel, self.completion, call, handles, results, (results, keep), finish, source)

    # Reductions

    def all_reduce(self, call: Call, tensors: list[Tensor], op: Any) -> Work:
        reduction = engine_reduction(op, tensors[0].dtype)
        if reduction is None:
            return self._bitwise(call, tensors, op, tensors)
        buffers = [reducible(tensor) for tensor in tensors]
        return self._work(call, self._reduce(call, buffers, [buffer.address for buffer in buffers], reduction), tensors)

    def reduce(self, call: Call, tensor: Tensor, root: int, op: Any) -> Work:
        """Only the root's tensor changes."""
        target = tensor if self.channel.rank == root else torch.empty_like(tensor)
        reduction = engine_reduction(op, tensor.dtype)
        if reduction is None:
            return self._bitwise(call, [tensor], op, [target])
        handles = self._reduce(call, [reducible(tensor)], [target.data_ptr()], reduction)
        return self._work(call, handles, [tensor], target)

    def reduce_scatter(
        self, call: Call, outputs: list[Tensor], inputs: list[Tensor], op: Any, keep: object = None
    ) -> Work:
        """Each input holds a part for every rank, one after the other and equally long."""
        for output, given in zip(outputs, inputs, strict=True):
            _check_share(call, output, given, self._size, "input", "output")
        reduction = engine_reduction(op, inputs[0].dtype)
        if reduction is None or reduction[0] not in (Sum, Average):
            return self._reduce_then_scatter(call, outputs, inputs, op)
        sources = [reducible(given) for given in inputs]
        targets = [movable(output).address for output in outputs]
        shapes = [(self._size, source.elements // self._size) for source in sources]
        handles = self._start(call, REDUCESCATTER, sources, targets, shapes, reduction)
        return self._work(call, handles, outputs, (inputs, keep))

    def reduce_scatter_list(self, call: Call, output: Tensor, parts: list[Tensor], op: Any) -> Work:
        """One tensor for each rank, which may differ in size."""
        self._check_count(call, parts)
        flat = joined(parts)
        if same_size(parts):
            return self.reduce_scatter(call, [output], [flat], op)
        start = sum(part.numel() for part in parts[: self.channel.rank])
        return self._reduce_then_scatter(call, [output], [flat], op, start)

    def _reduce_then_scatter(
        self, call: Call, outputs: list[Tensor], inputs: list[Tensor], op: Any, start: int | None = None
    ) -> Work:
        sums = [given.detach().clone() for given in inputs]
        work = self.all_reduce(call, sums, op)

        def take_share() -> None:
            for output, total in zip(outputs, sums, strict=True):
                first = self.channel.rank * output.numel() if start is None else start
                output.detach().copy_(total.view(-1)[first : first + output.numel()].view(output.shape))

        return work.then(take_share, outputs)

    def _reduce(self, call: Call, buffers: list[Buffer], targets: list[int], reduction: Reduction) -> list[int]:
        return self._start(call, ALLREDUCE, buffers, targets, [(buffer.elements,) for buffer in buffers], reduction)

    def _bitwise(self, call: Call, tensors: list[Tensor], op: Any, targets: list[Tensor]) -> Work:
        gathered = [torch.empty((self._size, tensor.numel()), dtype=tensor.dtype) for tensor in tensors]
        work = self.all_gather(call, gathered, tensors)

        def combine() -> None:
            for target, rows in zip(targets, gathered, strict=True):
                target.detach().copy_(bitwise(op, rows).view(target.shape))

        return work.then(combine, tensors)

    # Movements

    def broadcast(self, call: Call, tensors: list[Tensor], root: int) -> Work:
        buffers = [movable(tensor) for tensor in tensors]
        handles = [self.channel.submit(call, BROADCAST, buffer, buffer.address, root=root) for buffer in buffers]
        return self._work(call, handles, tensors)

    def all_gather(self, call: Call, outputs: list[Tensor], inputs: list[Tensor], keep: object = None) -> Work:
        """Each output holds the inputs of all ranks, one after the other."""
        for output, given in zip(outputs, inputs, strict=True):
            _check_share(call, given, output, self._size, "output", "input")
        sources = [movable(given) for given in inputs]
        targets = [movable(output).address for output in outputs]
        shapes = [(1, source.elements) for source in sources]
        return self._work(call, self._start(call, ALLGATHER, sources, targets, shapes), outputs, (inputs, keep))

    def all_gather_list(self, call: Call, outputs: list[Tensor], given: Tensor) -> Work:
        """One tensor for each rank, which may differ in size."""
        self._check_count(call, outputs)
        if given.numel() != outputs[self.channel.rank].numel():
            raise ValueError(
                f"{call.operation}: this rank passes {given.numel()} elements, but expects "
                f"{outputs[self.channel.rank].numel()} from itself"
            )
        if same_size(outputs):
            flat = torch.empty(self._size * given.numel(), dtype=given.dtype)
            work = self.all_gather(call, [flat], [given])
            return work.then(lambda: spread(flat, outputs), outputs)
        handle = self.channel.submit(call, ALLGATHER, movable(given))
        expected = sum(output.numel() for output in outputs)

        def adopt(handles: Sequence[int]) -> None:
            spread(self._received(call, handles[0], given.dtype, expected), outputs)

        return self._work(call, [handle], outputs, given, adopt)

    def all_to_all(
        self, call: Call, output: Tensor, given: Tensor, output_rows: Sequence[int], input_rows: Sequence[int]
    ) -> Work:
        """Rows of one tensor to rows of another; empty lists of rows: equal shares."""
        if not output_rows and not input_rows:
            return self._all_to_all_even(call, output, given)
        sent = _row_counts(call, given, input_rows, self._size, "input")
        expected = _row_counts(call, output, output_rows, self._size, "output")
        return self._all_to_all_uneven(call, given, sent, [output], expected)

    def all_to_all_list(self, call: Call, outputs: list[Tensor], inputs: list[Tensor]) -> Work:
        self._check_count(call, outputs)
        self._check_count(call, inputs)
        sent, expected = [item.numel() for item in inputs], [item.numel() for item in outputs]
        return self._all_to_all_uneven(call, joined(inputs), sent, outputs, expected)

    def _all_to_all_even(self, call: Call, output: Tensor, given: Tensor) -> Work:
        if given.numel() != output.numel() or given.numel() % self._size:
            raise ValueError(
                f"{call.operation}: {given.numel()} input and {output.numel()} output elements cannot be cut into "
                f"equal shares for {self._size} ranks; pass split sizes"
            )
        source = movable(given)
        shape, splits = (self._size, source.elements // self._size), [1] * self._size
        target = movable(output).address
        handle = self.channel.submit(call, ALLTOALL, source, target, shape, splits=splits)
        return self._work(call, [handle], [output], given)

    def _all_to_all_uneven(
        self, call: Call, given: Tensor, sent: Sequence[int], outputs: list[Tensor], expected: Sequence[int]
    ) -> Work:
        """`sent` and `expected` count elements for, and from, each rank."""
        units = units_of(given.dtype)
        handle = self.channel.submit(call, ALLTOALL, movable(given), splits=[count * units for count in sent])
        wanted = [count * units for count in expected]

        def adopt(handles: Sequence[int]) -> None:
            received = self.channel.world.received_splits(handles[0], self._size)
            _check_received(call, self.channel, received, wanted)
            if sum(expected):
                spread(self._received(call, handles[0], outputs[0].dtype, sum(expected)), outputs)

        return self._work(call, [handle], outputs, given, adopt)

    def gather(self, call: Call, outputs: list[Tensor], given: Tensor, root: int) -> Work:
        """Everything goes to one rank, so that the others need no memory for it."""
        sent, expected = [0] * self._size, [0] * self._size
        sent[root] = given.numel()
        if self.channel.rank == root:
            self._check_count(call, outputs)
            expected = [output.numel() for output in outputs]
        return self._all_to_all_uneven(call, given, sent, outputs, expected)

    def scatter(self, call: Call, output: Tensor, parts: list[Tensor], root: int) -> Work:
        sent, expected = [0] * self._size, [0] * self._size
        expected[root] = output.numel()
        given = output.new_empty(0)
        if self.channel.rank == root:
            self._check_count(call, parts)
            sent, given = [part.numel() for part in parts], joined(parts)
        return self._all_to_all_uneven(call, given, sent, [output], expected)

    # Meetings, and point to point

    def barrier(self, call: Call) -> Work:
        return self._work(call, [self.channel.barrier(call)], [])

    def transfer(self, call: Call, tensor: Tensor, peer: int, tag: int, sends: bool) -> Work:
        handle = self.channel.transfer(call, peer, tag, movable(tensor), sends)
        return self._work(call, [handle], [tensor], source=-1 if sends else peer)

    # Common parts

    def _start(
        self,
        call: Call,
        kind: int,
        sources: list[Buffer],
        targets: list[int],
        shapes: Sequence[tuple[int, ...]],
        reduction: Reduction = (Sum, 1.0, 1.0),
    ) -> list[int]:
        if len(sources) == 1:
            return [self.channel.submit(call, kind, sources[0], targets[0], shapes[0], reduction)]
        return [self.channel.submit_group(call, kind, sources, targets, shapes, reduction)]

    def _received(self, call: Call, handle: int, dtype: torch.dtype, expected: int) -> Tensor:
        memory, _ = self.channel.world.take_output(handle)
        flat = torch.frombuffer(memory, dtype=dtype) if memory.nbytes else torch.empty(0, dtype=dtype)
        if flat.numel() != expected:
            raise ProcessGroupMismatchError(
                f"{call.operation}: {flat.numel()} elements came, but the output tensors hold {expected}"
            )
        return flat

    def _check_count(self, call: Call, tensors: Sequence[Tensor]) -> None:
        if len(tensors) != self._size:
            raise ValueError(f"{call.operation}: {len(tensors)} tensors were passed for {self._size} ranks")


def _check_share(call: Call, share: Tensor, whole: Tensor, size: int, whole_name: str, share_name: str) -> None:
    if share.dtype != whole.dtype:
        raise ValueError(f"{call.operation}: {share_name} is {share.dtype}, but {whole_name} is {whole.dtype}")
    if whole.numel() != size * share.numel():
        raise ValueError(
            f"{call.operation}: {whole_name} has {whole.numel()} elements, but {share_name} has {share.numel()} and "
            f"there are {size} ranks"
        )


def _row_counts(call: Call, tensor: Tensor, rows: Sequence[int], size: int, name: str) -> list[int]:
    """Elements for each rank, from rows for each rank."""
    length = tensor.shape[0] if tensor.dim() else 0
    counts = list(rows) or [length // size] * size
    if len(counts) != size or sum(counts) != length:
        raise ValueError(
            f"{call.operation}: {name} split sizes {counts} do not add up to the {length} rows of the tensor, or there "
            f"is not one for each of the {size} ranks"
        )
    row = tensor.numel() // length if length else 0
    return [count * row for count in counts]


def _check_received(call: Call, channel: Channel, received: Sequence[int], expected: Sequence[int]) -> None:
    wrong = [rank for rank in range(channel.size) if received[rank] != expected[rank]]
    if wrong:
        raise ProcessGroupMismatchError(
            f"{call.operation}: rank {wrong[0]} sent {received[wrong[0]]} elements, but {expected[wrong[0]]} were "
            f"expected{channel.where()}"
        )
