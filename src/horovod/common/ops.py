# SPDX-License-Identifier: Apache-2.0
"""The collectives, written once for all framework APIs.

Each framework's API provides an Adapter for its tensors. Each method here checks its arguments, submits the operation
to the engine and returns a Pending. The API then waits for it or turns it into a handle. `will_wait` is True if the
caller waits at once: the caller's thread can then drive the operation, so the engine need not wake another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from horovod._engine import EngineCall, EngineError, TensorLocation
from horovod.common import rules
from horovod.common.calls import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    JOIN,
    REDUCESCATTER,
    Call,
    TakesCalls,
    names_in_group,
    reduction_of,
    root_of,
)
from horovod.common.dtypes import ITEM_BYTES, UINT8
from horovod.common.group_contents import CHECKSUM_DIGITS
from horovod.common.handles import Batch, HandleTable, Pending, translate
from horovod.common.rules import PLAIN_SUM, Reduction

if TYPE_CHECKING:
    from horovod._engine import Member, Output, World
    from horovod.common.context import Context
    from horovod.common.membership import Membership
    from horovod.common.process_set import ProcessSet

Description: TypeAlias = "tuple[int, tuple[int, ...], int]"  # address, shape, id of the dtype
T = TypeVar("T")
R = TypeVar("R")


class Adapter(Protocol[T]):
    """Functions that describe a framework's tensors to the engine and create new ones."""

    def source(self, tensor: T, /) -> Description:
        """Describe a tensor that is read.

        Raise ValueError if the engine cannot read it (strides, dtype, byte order).
        """

    def target(self, tensor: T, /) -> Description:
        """Describe a tensor that is written to. Raise ValueError if the engine cannot write to it."""

    def empty(self, like: T, shape: tuple[int, ...], /) -> tuple[T, int]:
        """Return a new tensor of `shape`, with the dtype and device of `like`, and its address."""

    def adopt(self, memory: Output, like: T, rows: int, /) -> T:
        """Return memory that the engine allocated as a tensor with `rows` rows of the shape and dtype of `like`."""

    def split_sizes(self, splits: Any, /) -> list[int]:
        """Return the user's splits of an alltoall as integers. Raise ValueError if they are not integers."""

    def splits_tensor(self, received: Sequence[int], splits: Any, /) -> Any:
        """Return received splits in the form that matches the user's `splits`, which are None if not given."""


class Collectives(Generic[T]):
    """All collectives of one context for one kind of tensor."""

    def __init__(self, context: Context, adapter: Adapter[T]) -> None:
        self.context = context
        self.handles: HandleTable = context.handles
        self.adapter = adapter
        self._source = adapter.source
        self._target = adapter.target
        self._empty = adapter.empty

    def start(self, call: Call, tensors: Sequence[T], will_wait: bool) -> Pending:
        """Submit a collective of one tensor, or of several tensors as one unit if the call is grouped.

        The result of an alltoall is always (output, received splits).
        """
        member = self._member(call.process_set)
        return self._start_in(member.world, member, call, tensors, will_wait)

    def _start_in(
        self, world: TakesCalls, member: Membership, call: Call, tensors: Sequence[T], will_wait: bool
    ) -> Pending:
        """Submit a collective to a world, which may be an object that stands in for the set's own world."""
        if call.grouped:
            return self._start_group(world, member, call, tensors, will_wait)
        (tensor,) = tensors
        output, (address, shape, dtype), target = self._prepare(call, member, tensor)
        asked = _engine_call(call, reduction_of(call, dtype, member), root_of(call, member), will_wait)
        splits = self._split_sizes(call, shape, member) if call.kind == ALLTOALL else ()
        name = member.full_name(call.operation, call.name)
        try:
            handle = world.submit(member.id, name, asked, TensorLocation(dtype, shape, address, target), splits)
        except EngineError as error:
            raise translate(error, name) from None
        return Pending(world, handle, name, tensor, output, self._collector(call, member))

    def _start_group(
        self, world: TakesCalls, member: Membership, call: Call, tensors: Sequence[T], will_wait: bool
    ) -> Pending:
        root = root_of(call, member)
        reduction = PLAIN_SUM
        outputs, locations = [], []
        for tensor in tensors:
            output, (address, shape, dtype), target = self._prepare(call, member, tensor)
            reduction = reduction_of(call, dtype, member)
            outputs.append(output)
            locations.append(TensorLocation(dtype, shape, address, target))
        name = member.full_name(call.operation, call.name) + call.suffix
        if not locations:
            raise ValueError(f"{name}: a group needs at least one tensor")
        names, group = names_in_group(name, len(locations)), name
        if call.contents:
            # If ranks put different tensors into a group, the tensors' names differ and ranks would wait for each
            # other. An empty tensor whose name does not depend on the contents lets the engine compare the groups.
            names = [*names_in_group(f"{name}.{call.contents[-CHECKSUM_DIGITS:]}", len(locations)), name]
            first = locations[0]
            locations.append(TensorLocation(first.dtype, (0,), first.input, first.output))
            group = f"{name}: {call.contents}"
        try:
            asked = _engine_call(call, reduction, root, will_wait)
            handle = world.submit_group(member.id, group, names, asked, locations)
        except EngineError as error:
            raise translate(error, name) from None
        return Pending(world, handle, name, tuple(tensors), tuple(outputs), self._collector(call, member))

    def _prepare(self, call: Call, member: Membership, tensor: T) -> tuple[T | None, Description, int]:
        """Return the output, the description of the input, and the address of the output.

        The output is None and its address 0 if the engine allocates the output.
        """
        if call.kind in (ALLREDUCE, BROADCAST):
            return self._output_like(tensor, call.in_place)
        described = self._source(tensor)
        if call.kind == REDUCESCATTER:
            output, target = self._empty(tensor, rules.scattered_shape(described[1], member.index, member.size))
            return output, described, target
        rules.check_gather(described[1], call.operation)
        return None, described, 0

    def _output_like(self, tensor: T, in_place: bool) -> tuple[T, Description, int]:
        """Return output, description and address for a collective whose output has the input's shape."""
        if in_place:
            described = self._target(tensor)
            return tensor, described, described[0]
        described = self._source(tensor)
        output, address = self._empty(tensor, described[1])
        return output, described, address

    def _split_sizes(self, call: Call, shape: tuple[int, ...], member: Membership) -> Sequence[int]:
        wanted = None if call.splits is None else self.adapter.split_sizes(call.splits)
        return rules.alltoall_splits(shape, wanted, member.size)

    # Outputs that the engine allocates

    def _collector(self, call: Call, member: Membership) -> Callable[[Pending], Any] | None:
        """Return the function that makes the result from outputs that the engine allocated.

        Return None if the engine allocates no output for this kind of collective.
        """
        if call.kind == ALLGATHER:
            return self._gathered_group if call.grouped else self._gathered
        if call.kind != ALLTOALL:
            return None

        def collect(pending: Pending) -> tuple[T, Any]:
            received = pending.world.received_splits(pending.handle, member.size)
            return self._gathered(pending), self.adapter.splits_tensor(received, call.splits)

        return collect

    def _gathered(self, pending: Pending) -> T:
        memory, rows = pending.world.take_output(pending.handle)
        return self.adapter.adopt(memory, pending.keep, rows)

    def _gathered_group(self, pending: Pending) -> tuple[T, ...]:
        results = []
        for index, tensor in enumerate(pending.keep):
            memory, rows = pending.world.take_output(pending.handle, index)
            results.append(self.adapter.adopt(memory, tensor, rows))
        return tuple(results)

    # Many allreduces in one call of the engine

    def start_allreduces(
        self, call: Call, full_names: Sequence[str], described: Sequence[Description], keep: Any, will_wait: bool
    ) -> Batch:
        """Submit allreduces in place, each as an operation of its own. The caller has checked the reduction."""
        member = self._member(call.process_set)
        world = self._world_of_batch(member.world)
        batch = Batch(world, keep)
        asked = _engine_call(call, (call.op, call.prescale, call.postscale), -1, will_wait)
        locations = [TensorLocation(dtype, shape, address, address) for address, shape, dtype in described]
        try:
            world.submit_many(member.id, full_names, asked, locations, batch.handles)
        except EngineError as error:
            self.handles.abandon(batch)
            raise translate(error, full_names[len(batch.handles)]) from None
        return batch

    def _world_of_batch(self, world: World) -> Any:
        """Return what takes the calls of `start_allreduces`: the engine's world or an object in its place."""
        return world

    def start_batch(
        self, submit: Callable[[Member], tuple[int, R]], keep: Any, process_set: ProcessSet
    ) -> tuple[Batch, R]:
        """Submit operations by a native call.

        Args:
            submit: Native call that returns one handle for all operations (0 if there are none), and a value for the
                caller.
            keep: What must stay alive until the operations are done.
            process_set: The set in which the operations run.
        """
        batch = Batch(self._member(process_set).world, keep)
        try:
            handle, more = submit(self.native_member(process_set))
        except EngineError as error:
            raise translate(error) from None
        batch.handles += [handle] if handle else []
        return batch, more

    # Barrier and join

    def barrier(self, process_set: ProcessSet) -> None:
        """Wait until every rank of the set has called this."""
        member = self._member(process_set)
        self.handles.finish(self._meet(member, BARRIER, member.full_name("barrier", None)))

    def join(self, device: int = -1) -> int:
        """Take part in other ranks' allreduces with zeros until all ranks have joined.

        Return the rank that joined last.

        Args:
            device: The GPU to use if this rank has submitted no tensors on a GPU; -1 for any.
        """
        member = self._member(self.context.global_set)
        pending = self._meet(member, JOIN, "join", device)
        pending.collect = lambda it: member.world.value(it.handle)
        last = int(self.handles.finish(pending))
        member.restart_numbers()
        self.context.era += 1
        self.context.joins += 1
        return last

    def _meet(self, member: Membership, kind: int, name: str, device: int = -1) -> Pending:
        try:
            asked = EngineCall(kind, will_wait=True)
            handle = member.world.submit(member.id, name, asked, TensorLocation(UINT8, (), device=device))
        except EngineError as error:
            raise translate(error, name) from None
        return Pending(member.world, handle, name, None)

    # Point to point

    def send(self, tensor: T, peer: int, tag: int) -> Pending:
        return self._transfer("send", tensor, self._source(tensor), peer, tag)

    def recv(self, tensor: T, peer: int, tag: int) -> Pending:
        """Receive into `tensor`, which must have the size of the tensor that is sent."""
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
        world = self._world_of_message(direction, member.world, tensor)
        start = world.send if direction == "send" else world.recv
        try:
            return Pending(world, start(int(peer), int(tag), address, count), name, tensor, tensor)
        except EngineError as error:
            raise translate(error, name) from None

    def _world_of_message(self, direction: str, world: World, tensor: T) -> Any:
        """Return the object that sends or receives a message: the engine's world or an object in its place."""
        return world

    # Common parts

    def _member(self, process_set: ProcessSet) -> Membership:
        member = process_set.membership
        return member if member is not None and member.index >= 0 else self.context.membership_of(process_set)

    def native_member(self, process_set: ProcessSet) -> Member:
        """Return the membership for native calls. Raise ValueError if this process is not a member."""
        return process_set.native or self.context.native_of(process_set)


def _engine_call(call: Call, reduction: Reduction, root: int, will_wait: bool) -> EngineCall:
    """Return the engine's form of a call whose arguments have been checked."""
    return EngineCall(call.kind, *reduction, root=root, wire_dtype=call.wire, will_wait=will_wait)
