# SPDX-License-Identifier: Apache-2.0
"""The collectives, written once for all doors.

A door brings an Adapter for its tensors. Each method checks its arguments, submits to the engine and returns the
operation under way, which the door then waits for or turns into a handle. `will_wait` says which: nobody need be woken
to drive the work of a caller that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from horovod._engine import EngineError
from horovod.common import rules
from horovod.common.dtypes import AS_IT_IS, ITEM_BYTES, UINT8
from horovod.common.handles import Batch, Pending, translate
from horovod.common.rules import PLAIN_SUM, Reduction

if TYPE_CHECKING:
    from horovod._engine import Member, Output
    from horovod.common.context import Context
    from horovod.common.process_sets import Membership, ProcessSet

_ALLREDUCE, _ALLGATHER, _BROADCAST, _ALLTOALL, _REDUCESCATTER, _BARRIER, _JOIN = range(7)  # hvd::OpKind

Description: TypeAlias = "tuple[int, tuple[int, ...], int]"  # address, shape, dtype id
T = TypeVar("T")
R = TypeVar("R")


class Adapter(Protocol[T]):
    """A framework's tensor ↔ the engine's buffer."""

    def source(self, tensor: T, /) -> Description:
        """Where to read a tensor; ValueError if the engine cannot (strides, dtype, byte order)."""

    def target(self, tensor: T, /) -> Description:
        """The same for a tensor that is written to."""

    def empty(self, like: T, shape: tuple[int, ...], /) -> tuple[T, int]:
        """A new tensor of `shape` with dtype and device of `like`, and its address."""

    def adopt(self, memory: Output, like: T, rows: int, /) -> T:
        """Memory that the engine allocated, as a tensor of `rows` rows of `like`."""

    def split_sizes(self, splits: Any, /) -> list[int]:
        """The user's splits of an alltoall as integers; ValueError if they are not."""

    def splits_tensor(self, received: Sequence[int], splits: Any, /) -> Any:
        """Received splits, in the form that belongs to the user's `splits` (None: not given)."""


class Collectives(Generic[T]):
    """All collectives of one context, on one kind of tensor."""

    def __init__(self, context: Context, adapter: Adapter[T]) -> None:
        self.context = context
        self.handles = context.handles
        self.adapter = adapter
        self._source = adapter.source
        self._target = adapter.target
        self._empty = adapter.empty

    # Reductions

    def allreduce(
        self,
        tensor: T,
        in_place: bool,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        will_wait: bool,
        wire: int = AS_IT_IS,
    ) -> Pending:
        """`wire`: the id of the half type that float32 travels as where that saves bytes; others go as they are."""
        member = self._member(process_set)
        output, (address, shape, dtype), target = self._output_like(tensor, in_place)
        reduction = rules.reduction(op, prescale, postscale, dtype, member.id)
        full_name = member.full_name("allreduce", name)
        handle = _submit(member, _ALLREDUCE, full_name, dtype, shape, address, target, will_wait, reduction, wire=wire)
        return Pending(member.world, handle, full_name, tensor, output)

    def grouped_allreduce(
        self,
        tensors: Sequence[T],
        in_place: bool,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        will_wait: bool,
        wire: int = AS_IT_IS,
    ) -> Pending:
        member = self._member(process_set)
        reduction = PLAIN_SUM
        outputs, described, targets = [], [], []
        for tensor in tensors:
            output, description, target = self._output_like(tensor, in_place)
            reduction = rules.reduction(op, prescale, postscale, description[2], member.id)
            outputs.append(output)
            described.append(description)
            targets.append(target)
        full_name = member.full_name("grouped_allreduce", name)
        handle = _submit_group(member, _ALLREDUCE, full_name, described, targets, will_wait, reduction, wire=wire)
        return Pending(member.world, handle, full_name, tuple(tensors), tuple(outputs))

    def start_allreduces(
        self,
        full_names: Sequence[str],
        addresses: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[int],
        keep: Any,
        reduction: Reduction,
        process_set: ProcessSet,
        will_wait: bool,
        wire: int = AS_IT_IS,
    ) -> Batch:
        """Many allreduces in place, each for itself, at the price of one call. The caller has checked the reduction."""
        member = self._member(process_set)
        batch = Batch(member.world, keep)
        try:
            member.world.submit_many(
                member.id,
                _ALLREDUCE,
                full_names,
                dtypes,
                shapes,
                addresses,
                addresses,
                *reduction,
                batch.handles,
                will_wait,
                wire,
            )
        except EngineError as error:
            self.handles.abandon(batch)
            raise translate(error, full_names[len(batch.handles)]) from None
        return batch

    def start_batch(
        self, submit: Callable[[Member], tuple[int, R]], keep: Any, process_set: ProcessSet
    ) -> tuple[Batch, R]:
        """The same by a native call, which gives one handle for all (0: none) and something for the caller."""
        batch = Batch(self._member(process_set).world, keep)
        try:
            handle, more = submit(self.native_member(process_set))
        except EngineError as error:
            raise translate(error) from None
        batch.handles += [handle] if handle else []
        return batch, more

    def reducescatter(
        self,
        tensor: T,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        will_wait: bool,
    ) -> Pending:
        member = self._member(process_set)
        address, shape, dtype = self._source(tensor)
        output, target = self._empty(tensor, rules.scattered_shape(shape, member.index, member.size))
        reduction = rules.scatter_reduction(op, prescale, postscale, dtype, member.id)
        full_name = member.full_name("reducescatter", name)
        handle = _submit(member, _REDUCESCATTER, full_name, dtype, shape, address, target, will_wait, reduction)
        return Pending(member.world, handle, full_name, tensor, output)

    def grouped_reducescatter(
        self,
        tensors: Sequence[T],
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        will_wait: bool,
    ) -> Pending:
        member = self._member(process_set)
        reduction = PLAIN_SUM
        outputs, described, targets = [], [], []
        for tensor in tensors:
            description = self._source(tensor)
            reduction = rules.scatter_reduction(op, prescale, postscale, description[2], member.id)
            output, target = self._empty(tensor, rules.scattered_shape(description[1], member.index, member.size))
            outputs.append(output)
            described.append(description)
            targets.append(target)
        full_name = member.full_name("grouped_reducescatter", name)
        handle = _submit_group(member, _REDUCESCATTER, full_name, described, targets, will_wait, reduction)
        return Pending(member.world, handle, full_name, tuple(tensors), tuple(outputs))

    # Movements

    def allgather(self, tensor: T, name: str | None, process_set: ProcessSet, will_wait: bool) -> Pending:
        member = self._member(process_set)
        address, shape, dtype = self._source(tensor)
        rules.check_gather(shape, "allgather")
        full_name = member.full_name("allgather", name)
        handle = _submit(member, _ALLGATHER, full_name, dtype, shape, address, 0, will_wait)
        return Pending(member.world, handle, full_name, tensor, collect=self._gathered)

    def _gathered(self, pending: Pending) -> T:
        memory, rows = pending.world.take_output(pending.handle)
        return self.adapter.adopt(memory, pending.keep, rows)

    def grouped_allgather(
        self, tensors: Sequence[T], name: str | None, process_set: ProcessSet, will_wait: bool
    ) -> Pending:
        member = self._member(process_set)
        described = [self._source(tensor) for tensor in tensors]
        for _, shape, _ in described:
            rules.check_gather(shape, "grouped_allgather")
        full_name = member.full_name("grouped_allgather", name)
        handle = _submit_group(member, _ALLGATHER, full_name, described, [0] * len(described), will_wait, PLAIN_SUM)
        return Pending(member.world, handle, full_name, tuple(tensors), collect=self._gathered_group)

    def _gathered_group(self, pending: Pending) -> tuple[T, ...]:
        results = []
        for index, tensor in enumerate(pending.keep):
            memory, rows = pending.world.take_output(pending.handle, index)
            results.append(self.adapter.adopt(memory, tensor, rows))
        return tuple(results)

    def broadcast(
        self, tensor: T, in_place: bool, root_rank: int, name: str | None, process_set: ProcessSet, will_wait: bool
    ) -> Pending:
        member = self._member(process_set)
        output, (address, shape, dtype), target = self._output_like(tensor, in_place)
        root = rules.check_root(root_rank, member.ranks)
        full_name = member.full_name("broadcast", name)
        handle = _submit(member, _BROADCAST, full_name, dtype, shape, address, target, will_wait, root=root)
        return Pending(member.world, handle, full_name, tensor, output)

    def grouped_broadcast(
        self, tensors: Sequence[T], root_rank: int, name: str | None, process_set: ProcessSet, will_wait: bool
    ) -> Pending:
        member = self._member(process_set)
        root = rules.check_root(root_rank, member.ranks)
        outputs, described, targets = [], [], []
        for tensor in tensors:
            output, description, target = self._output_like(tensor, False)
            outputs.append(output)
            described.append(description)
            targets.append(target)
        full_name = member.full_name("grouped_broadcast", name)
        handle = _submit_group(member, _BROADCAST, full_name, described, targets, will_wait, PLAIN_SUM, root)
        return Pending(member.world, handle, full_name, tuple(tensors), tuple(outputs))

    def alltoall(self, tensor: T, splits: Any, name: str | None, process_set: ProcessSet, will_wait: bool) -> Pending:
        """The result is always (output, received splits)."""
        member = self._member(process_set)
        address, shape, dtype = self._source(tensor)
        wanted = None if splits is None else self.adapter.split_sizes(splits)
        sizes = rules.alltoall_splits(shape, wanted, member.size)
        full_name = member.full_name("alltoall", name)
        handle = _submit(member, _ALLTOALL, full_name, dtype, shape, address, 0, will_wait, splits=sizes)

        def collect(pending: Pending) -> tuple[T, Any]:
            received = pending.world.received_splits(pending.handle, member.size)
            return self._gathered(pending), self.adapter.splits_tensor(received, splits)

        return Pending(member.world, handle, full_name, tensor, collect=collect)

    # Meetings

    def barrier(self, process_set: ProcessSet, will_wait: bool) -> Pending:
        member = self._member(process_set)
        full_name = member.full_name("barrier", None)
        return Pending(member.world, _submit(member, _BARRIER, full_name, UINT8, (), 0, 0, will_wait), full_name, None)

    def join(self) -> int:
        """Take part in the others' allreduces with zeros until all ranks have joined; the rank that joined last."""
        member = self._member(self.context.global_set)
        handle = _submit(member, _JOIN, "join", UINT8, (), 0, 0, will_wait=True)
        last = int(self.handles.finish(Pending(member.world, handle, "join", None, collect=_value)))
        member.restart_numbers()
        self.context.era += 1
        return last

    # Point to point

    def send(self, tensor: T, peer: int, tag: int) -> Pending:
        return self._transfer("send", tensor, self._source(tensor), peer, tag)

    def recv(self, tensor: T, peer: int, tag: int) -> Pending:
        """Into `tensor`, which must have the size of what is sent."""
        return self._transfer("recv", tensor, self._target(tensor), peer, tag)

    def _transfer(self, direction: str, tensor: T, described: Description, peer: int, tag: int) -> Pending:
        member = self._member(self.context.global_set)
        if peer not in member.ranks:
            raise ValueError(f"{direction}: there is no rank {peer}; ranks are 0 to {member.size - 1}")
        address, shape, dtype = described
        count = ITEM_BYTES[dtype]
        for extent in shape:
            count *= extent
        name = f"{direction}.{peer}.{tag}"
        start = member.world.send if direction == "send" else member.world.recv
        try:
            return Pending(member.world, start(int(peer), int(tag), address, count), name, tensor, tensor)
        except EngineError as error:
            raise translate(error, name) from None

    # Common parts

    def _member(self, process_set: ProcessSet) -> Membership:
        member = process_set.membership
        if member is None or member.index < 0:
            self.context.refuse_set(process_set)
        return member

    def native_member(self, process_set: ProcessSet) -> Member:
        """The set for native calls; refused if this process is not a member."""
        if process_set.native is None:
            self.context.refuse_set(process_set)
        return process_set.native

    def _output_like(self, tensor: T, in_place: bool) -> tuple[T, Description, int]:
        """(output, description of the input, address of the output) where both have one shape."""
        if in_place:
            described = self._target(tensor)
            return tensor, described, described[0]
        described = self._source(tensor)
        output, address = self._empty(tensor, described[1])
        return output, described, address


def _value(pending: Pending) -> int:
    return pending.world.value(pending.handle)


def _submit(
    member: Membership,
    kind: int,
    name: str,
    dtype: int,
    shape: tuple[int, ...],
    address: int,
    target: int,
    will_wait: bool,
    reduction: Reduction = PLAIN_SUM,
    root: int = -1,
    splits: Sequence[int] = (),
    wire: int = AS_IT_IS,
) -> int:
    op, prescale, postscale = reduction
    try:
        return member.world.submit(
            member.id, kind, name, dtype, shape, address, target, op, prescale, postscale, root, splits, will_wait, wire
        )
    except EngineError as error:
        raise translate(error, name) from None


def _submit_group(
    member: Membership,
    kind: int,
    name: str,
    described: Sequence[Description],
    targets: Sequence[int],
    will_wait: bool,
    reduction: Reduction,
    root: int = -1,
    wire: int = AS_IT_IS,
) -> int:
    if not described:
        raise ValueError(f"{name}: a group needs at least one tensor")
    count = len(described)
    addresses, shapes, dtypes = zip(*described, strict=True)
    names = [f"{name}_{index}of{count}" for index in range(1, count + 1)]
    try:
        return member.world.submit_group(
            member.id, kind, name, names, dtypes, shapes, addresses, targets, *reduction, root, will_wait, wire
        )
    except EngineError as error:
        raise translate(error, name) from None
