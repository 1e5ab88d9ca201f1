# SPDX-License-Identifier: Apache-2.0
"""What a collective is asked to do, whichever door it comes through and whichever way it then takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from horovod._engine import OpKind
from horovod.common import rules
from horovod.common.dtypes import AS_IT_IS
from horovod.common.process_sets import Membership, ProcessSet, global_process_set
from horovod.common.rules import PLAIN_SUM, Reduction

if TYPE_CHECKING:
    from horovod._engine import EngineCall, Output, TensorLocation

# As plain numbers, which native calls read fastest.
ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, BARRIER, JOIN, ADD_PROCESS_SET, REMOVE_PROCESS_SET = map(
    int, OpKind
)
KIND_NAMES = tuple(kind.name.lower() for kind in OpKind)
_GROUP_NAMES = tuple(f"grouped_{name}" for name in KIND_NAMES)


@dataclass(frozen=True, slots=True)
class Call:
    """All of a collective but its tensors. A field that the kind has no use for keeps its default."""

    kind: int
    process_set: ProcessSet = global_process_set
    name: str | None = None
    op: int = rules.Sum
    prescale: float = 1.0
    postscale: float = 1.0
    grouped: bool = False  # any number of tensors, as one unit
    in_place: bool = False  # allreduce and broadcast: the result overwrites the tensor
    root: int = -1
    splits: Any = None  # the user's, for an alltoall; None: equal shares
    received: int = -1  # in compiled programs: the rows that an alltoall with splits gives
    serial: int = 0  # in compiled programs: tells calls apart that are equal on this rank and may not be on others
    wire: int = AS_IT_IS  # the id of the half type that float32 travels as where that saves bytes
    only_root: bool = False  # in compiled programs: zeros on all ranks but `root`; the gradient of a broadcast
    contents: str = ""  # of a group: what every rank must have put into it, in words; empty: not compared

    @property
    def operation(self) -> str:
        """Its name among the collectives, such as grouped_allreduce."""
        return (_GROUP_NAMES if self.grouped else KIND_NAMES)[self.kind]


class TakesCalls(Protocol):
    """A world that takes calls, as Collectives needs it: the engine's World, or whoever stands in for it.

    A stand-in may pass a call on later, and gives handles of its own. Arguments are those of World.submit.
    """

    def submit(
        self, process_set: int, name: str, call: EngineCall, tensor: TensorLocation, splits: Sequence[int] = (), /
    ) -> int: ...

    def submit_group(
        self,
        process_set: int,
        group: str,
        names: Sequence[str],
        call: EngineCall,
        tensors: Sequence[TensorLocation],
        /,
    ) -> int: ...

    def poll(self, handle: int, /) -> bool: ...
    def wait(self, handle: int, /) -> object: ...
    def finish(self, handle: int, /) -> None:
        """Wait and release."""

    def take_output(self, handle: int, index: int = 0, /) -> tuple[Output, int]: ...
    def received_splits(self, handle: int, members: int, /) -> list[int]: ...
    def release(self, handle: int, /) -> None: ...


def reduction_of(call: Call, dtype: int, member: Membership) -> Reduction:
    """What the engine is told of op and factors; refused if it cannot be done with this dtype, or in this set."""
    if call.kind == ALLREDUCE:
        return rules.reduction(call.op, call.prescale, call.postscale, dtype, member.id)
    if call.kind == REDUCESCATTER:
        return rules.scatter_reduction(call.op, call.prescale, call.postscale, dtype, member.id)
    return PLAIN_SUM


def root_of(call: Call, member: Membership) -> int:
    """The root of a broadcast, which must be a member; -1 for others."""
    return rules.check_root(call.root, member.ranks) if call.kind == BROADCAST else -1


def result_shape(call: Call, shape: tuple[int, ...], member: Membership) -> tuple[int, ...]:
    """What compiled programs need to know in advance: all ranks' tensors have the same shape there."""
    if call.kind == ALLGATHER:
        rules.check_gather(shape, "allgather")
        return (shape[0] * member.size, *shape[1:])
    if call.kind == REDUCESCATTER:
        return rules.scattered_shape(shape, member.index, member.size)
    if call.kind == ALLTOALL:
        rules.alltoall_splits(shape, call.splits, member.size)
        return shape if call.splits is None else (call.received, *shape[1:])
    return shape
