# SPDX-License-Identifier: Apache-2.0
"""Collectives of torch.distributed in terms of the engine's.

If all ranks must contribute equal amounts, a rank's share is submitted as one row. If rows have different lengths, all
ranks then raise an error, and no rank writes past the end of a tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from horovod.common.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, Call
from horovod.common.rules import Average, Reduction, Sum
from horovod.torch.distributed.buffers import (
    in_order,
    joined,
    movable,
    reducible,
    same_size,
    spread,
    units_of,
)
from horovod.torch.distributed.channel import Channel, Request
from horovod.torch.distributed.completion import Completion
from horovod.torch.distributed.errors import ProcessGroupMismatchError
from horovod.torch.distributed.flight import Finish
from horovod.torch.distributed.reductions import bitwise, engine_reduction
from horovod.torch.distributed.work import Work
from horovod.torch.lazy_bits import resolve, write_back

Tensor = torch.Tensor

_ALLGATHER = Call(ALLGATHER)


@functools.lru_cache(64)
def _engine_call(kind: int, op: int, prescale: float, postscale: float) -> Call:
    """Return a reduction's Call; cached, because few different ones are requested many times."""
    return Call(kind, op=op, prescale=prescale, postscale=postscale)


class Collectives:
    """Collectives of one group. Every method starts its operation and returns it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.completion = Completion()
        self._size = channel.size

    def _work(
        self,
        request: Request,
        handles: Sequence[int],
        results: list[Tensor],
        keep: object = None,
        finish: Finish | None = None,
        source: int = -1,
    ) -> Work:
        return Work(self.channel, self.completion, request, handles, results, (results, keep), finish, source)

    # Reductions

    def all_reduce(self, request: Request, tensors: list[Tensor], op: Any) -> Work:
        reduction = engine_reduction(op, tensors[0].dtype)
        given = [in_order(tensor) for tensor in tensors]
        if reduction is None:
            return self._put_back(self._bitwise(request, given, op, given), given, tensors)
        return self._put_back(self._reduce(request, given, given, reduction, given), given, tensors)

    def reduce(self, request: Request, tensor: Tensor, root: int, op: Any) -> Work:
        """Reduce a tensor to the root; other ranks' tensors do not change."""
        given = in_order(tensor)
        target = given if self.channel.rank == root else torch.empty_like(given)
        reduction = engine_reduction(op, tensor.dtype)
        if reduction is None:
            return self._put_back(self._bitwise(request, [given], op, [target]), [given], [tensor])
        return self._put_back(self._reduce(request, [given], [target], reduction, [given]), [given], [tensor])

    def reduce_scatter(self, request: Request, outputs: list[Tensor], inputs: list[Tensor], op: Any) -> Work:
        """Reduce inputs that each hold equal parts for all ranks, in order; `outputs` get this rank's parts."""
        for output, given in zip(outputs, inputs, strict=True):
            _check_share(request, output, given, self._size, "input", "output")
        reduction = engine_reduction(op, inputs[0].dtype)
        if reduction is None or reduction[0] not in (Sum, Average):
            return self._reduce_then_scatter(request, outputs, inputs, op)
        shapes = [(self._size, reducible(given).elements // self._size) for given in inputs]
        return self._start(request, _engine_call(REDUCESCATTER, *reduction), inputs, outputs, shapes, outputs)

    def reduce_scatter_list(self, request: Request, output: Tensor, parts: list[Tensor], op: Any) -> Work:
        """Reduce one tensor for each rank; the tensors may differ in size."""
        self._check_count(request, parts)
        flat = joined(parts)
        if same_size(parts):
            return self.reduce_scatter(request, [output], [flat], op)
        start = sum(part.numel() for part in parts[: self.channel.rank])
        return self._reduce_then_scatter(request, [output], [flat], op, start)

    def _reduce_then_scatter(
        self, request: Request, outputs: list[Tensor], inputs: list[Tensor], op: Any, start: int | None = None
    ) -> Work:
        sums = [given.detach().clone() for given in inputs]
        work = self.all_reduce(request, sums, op)

        def take_share() -> None:
            for output, total in zip(outputs, sums, strict=True):
                first = self.channel.rank * output.numel() if start is None else start
                output.detach().copy_(total.view(-1)[first : first + output.numel()].view(output.shape))

        return work.then(take_share, outputs)

    def _reduce(
        self, request: Request, inputs: list[Tensor], outputs: list[Tensor], reduction: Reduction, results: list[Tensor]
    ) -> Work:
        shapes = [(reducible(tensor).elements,) for tensor in inputs]
        return self._start(request, _engine_call(ALLREDUCE, *reduction), inputs, outputs, shapes, results)

    def _bitwise(self, request: Request, tensors: list[Tensor], op: Any, targets: list[Tensor]) -> Work:
        gathered = [tensor.new_empty((self._size, tensor.numel())) for tensor in tensors]
        work = self.all_gather(request, gathered, tensors)

        def combine() -> None:
            for target, rows in zip(targets, gathered, strict=True):
                target.detach().copy_(bitwise(op, rows).view(target.shape))

        return work.then(combine, tensors)

    # Collectives that move data

    def broadcast(self, request: Request, tensors: list[Tensor], root: int) -> Work:
        given = [in_order(tensor) for tensor in tensors]
        buffers = [movable(tensor) for tensor in given]
        call = Call(BROADCAST, root=root)
        handles = [self.channel.submit(request, call, buffer, buffer.address) for buffer in buffers]
        return self._put_back(self._work(request, handles, given), given, tensors)

    def all_gather(self, request: Request, outputs: list[Tensor], inputs: list[Tensor]) -> Work:
        """Gather the inputs of all ranks; each output holds them one after the other."""
        for output, given in zip(outputs, inputs, strict=True):
            _check_share(request, given, output, self._size, "output", "input")
        shapes = [(1, movable(given).elements) for given in inputs]
        return self._start(request, _ALLGATHER, inputs, outputs, shapes, outputs)

    def all_gather_list(self, request: Request, outputs: list[Tensor], given: Tensor) -> Work:
        """Gather one tensor from each rank; the tensors may differ in size."""
        self._check_count(request, outputs)
        if given.numel() != outputs[self.channel.rank].numel():
            raise ValueError(
                f"{request.operation}: this rank passes {given.numel()} elements, but expects "
                f"{outputs[self.channel.rank].numel()} from itself"
            )
        if same_size(outputs):
            flat = given.new_empty(self._size * given.numel())
            work = self.all_gather(request, [flat], [given])
            return work.then(lambda: spread(flat, outputs), outputs)
        if self.channel.prompt_stream(request, _ALLGATHER):
            received = [output.numel() * units_of(given.dtype) for output in outputs]
            return self._into_flat(request, _ALLGATHER, given, outputs, received)
        given = resolve(given)
        handle = self.channel.submit(request, _ALLGATHER, movable(given))

        def adopt(handles: Sequence[int]) -> None:
            self._spread_received(request, handles[0], outputs)

        return self._work(request, [handle], outputs, given, adopt)

    def all_to_all(
        self, request: Request, output: Tensor, given: Tensor, output_rows: Sequence[int], input_rows: Sequence[int]
    ) -> Work:
        """Send rows of one tensor to rows of another; empty lists of rows mean equal shares."""
        if not output_rows and not input_rows:
            return self._all_to_all_even(request, output, given)
        sent = _row_counts(request, given, input_rows, self._size, "input")
        expected = _row_counts(request, output, output_rows, self._size, "output")
        return self._all_to_all_uneven(request, given, sent, [output], expected)

    def all_to_all_list(self, request: Request, outputs: list[Tensor], inputs: list[Tensor]) -> Work:
        self._check_count(request, outputs)
        self._check_count(request, inputs)
        sent, expected = [item.numel() for item in inputs], [item.numel() for item in outputs]
        return self._all_to_all_uneven(request, joined(inputs), sent, outputs, expected)

    def _all_to_all_even(self, request: Request, output: Tensor, given: Tensor) -> Work:
        if given.numel() != output.numel() or given.numel() % self._size:
            raise ValueError(
                f"{request.operation}: {given.numel()} input and {output.numel()} output elements cannot be cut into "
                f"equal shares for {self._size} ranks; pass split sizes"
            )
        shape = (self._size, movable(given).elements // self._size)
        shares = [1] * self._size
        call = Call(ALLTOALL, splits=shares)
        return self._start(request, call, [given], [output], [shape], [output], shares)

    def _all_to_all_uneven(
        self, request: Request, given: Tensor, sent: Sequence[int], outputs: list[Tensor], expected: Sequence[int]
    ) -> Work:
        """Exchange `sent` elements for each rank against `expected` elements from each rank."""
        units = units_of(given.dtype)
        call = Call(ALLTOALL, splits=[count * units for count in sent])
        wanted = [count * units for count in expected]
        if self.channel.prompt_stream(request, call):
            return self._into_flat(request, call, given, outputs, wanted)

        def adopt(handles: Sequence[int]) -> None:
            received = self.channel.world.received_splits(handles[0], self._size)
            _check_received(request, self.channel, received, wanted)
            if sum(expected):
                self._spread_received(request, handles[0], outputs)

        given = resolve(given)
        handle = self.channel.submit(request, call, movable(given))
        return self._work(request, [handle], outputs, given, adopt)

    def gather(self, request: Request, outputs: list[Tensor], given: Tensor, root: int) -> Work:
        """Gather by an alltoall in which only the root receives, so that other ranks need no memory for the result."""
        sent, expected = [0] * self._size, [0] * self._size
        sent[root] = given.numel()
        if self.channel.rank == root:
            self._check_count(request, outputs)
            expected = [output.numel() for output in outputs]
        return self._all_to_all_uneven(request, given, sent, outputs, expected)

    def scatter(self, request: Request, output: Tensor, parts: list[Tensor], root: int) -> Work:
        sent, expected = [0] * self._size, [0] * self._size
        expected[root] = output.numel()
        given = output.new_empty(0)
        if self.channel.rank == root:
            self._check_count(request, parts)
            sent, given = [part.numel() for part in parts], joined(parts)
        return self._all_to_all_uneven(request, given, sent, [output], expected)

    # Barrier, and point to point

    def barrier(self, request: Request) -> Work:
        return self._work(request, [self.channel.barrier(request)], [])

    def transfer(self, request: Request, tensor: Tensor, peer: int, tag: int, sends: bool) -> Work:
        given = resolve(tensor)
        handle = self.channel.transfer(request, peer, tag, movable(given), sends)
        request = replace(request, place=request.place.when_done())
        work = self._work(request, [handle], [tensor], given, source=-1 if sends else peer)
        return work if sends else self._put_back(work, [given], [tensor])

    # Helpers

    @staticmethod
    def _put_back(work: Work, given: list[Tensor], tensors: list[Tensor]) -> Work:
        """Make an operation on copies (`given`, from `in_order`) finally copy the results back to `tensors`."""
        same = all(copy is tensor for copy, tensor in zip(given, tensors, strict=True))
        return work if same else work.then(lambda: write_back(given, tensors), tensors)

    def _start(
        self,
        request: Request,
        call: Call,
        inputs: list[Tensor],
        outputs: list[Tensor],
        shapes: Sequence[tuple[int, ...]],
        results: list[Tensor],
        received: Sequence[int] = (),
    ) -> Work:
        """Start one collective of the engine, or a group of them, that writes to known outputs."""
        inputs, written = [resolve(given) for given in inputs], [resolve(output) for output in outputs]
        sources, targets = [movable(given) for given in inputs], [movable(output).address for output in written]
        if len(sources) == 1:
            handle = self.channel.submit(request, call, sources[0], targets[0], shapes[0], received)
        else:
            handle = self.channel.submit_group(request, call, sources, targets, shapes)
        work = self._work(request, [handle], results, (inputs, written))
        if any(copy is not output for copy, output in zip(written, outputs, strict=True)):
            work.then(lambda: write_back(written, outputs), results)
        return work

    def _into_flat(
        self, request: Request, call: Call, given: Tensor, outputs: list[Tensor], received: Sequence[int]
    ) -> Work:
        """Start a collective without negotiation. `received` counts the engine's elements that come from each rank."""
        expected = sum(received) // units_of(given.dtype)
        whole = len(outputs) == 1 and outputs[0].dtype == given.dtype and outputs[0].is_contiguous()
        flat = outputs[0] if whole else given.new_empty(expected)
        work = self._start(request, call, [given], [flat], [(movable(given).elements,)], outputs, received)
        return work if whole or not expected else work.then(lambda: spread(flat, outputs), outputs)

    def _spread_received(self, request: Request, handle: int, outputs: list[Tensor]) -> None:
        """Copy the output that the engine allocated to tensors, which must hold exactly as many elements."""
        flat = request.place.take_output(self.channel.world, handle, outputs[0])
        expected = sum(output.numel() for output in outputs)
        if flat.numel() != expected:
            raise ProcessGroupMismatchError(
                f"{request.operation}: {flat.numel()} elements were received, but the output tensors hold {expected}"
            )
        spread(flat, outputs)

    def _check_count(self, request: Request, tensors: Sequence[Tensor]) -> None:
        if len(tensors) != self._size:
            raise ValueError(
                f"{request.operation}: {len(tensors)} tensors were passed for {self._size} ranks; pass one for each"
            )


def _check_share(request: Request, share: Tensor, whole: Tensor, size: int, whole_name: str, share_name: str) -> None:
    if share.dtype != whole.dtype:
        raise ValueError(f"{request.operation}: {share_name} is {share.dtype}, but {whole_name} is {whole.dtype}")
    if whole.numel() != size * share.numel():
        raise ValueError(
            f"{request.operation}: {whole_name} has {whole.numel()} elements, but {share_name} has {share.numel()} and "
            f"there are {size} ranks"
        )


def _row_counts(request: Request, tensor: Tensor, rows: Sequence[int], size: int, name: str) -> list[int]:
    """Return the number of elements for each rank, from the number of rows for each rank."""
    length = tensor.shape[0] if tensor.dim() else 0
    counts = list(rows) or [length // size] * size
    if len(counts) != size or sum(counts) != length:
        raise ValueError(
            f"{request.operation}: {name} split sizes {counts} do not add up to the {length} rows of the tensor, or "
            f"there is not one for each of the {size} ranks"
        )
    row = tensor.numel() // length if length else 0
    return [count * row for count in counts]


def _check_received(request: Request, channel: Channel, received: Sequence[int], expected: Sequence[int]) -> None:
    wrong = [rank for rank in range(channel.size) if received[rank] != expected[rank]]
    if wrong:
        raise ProcessGroupMismatchError(
            f"{request.operation}: rank {wrong[0]} sent {received[wrong[0]]} elements, but {expected[wrong[0]]} were "
            f"expected{channel.where()}"
        )
