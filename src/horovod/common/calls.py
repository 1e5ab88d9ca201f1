# SPDX-License-Identifier: Apache-2.0
"""Description of a collective call, without its tensors, for every framework API and every way to run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from horovod._engine import OpKind
from horovod.common import rules
from horovod.common.dtypes import AS_IT_IS
from horovod.common.membership import Membership
from horovod.common.process_set import ProcessSet, global_process_set
from horovod.common.rules import PLAIN_SUM, Reduction

if TYPE_CHECKING:
    from horovod._engine import EngineCall, Output, TensorLocation

# Use integers instead of members of OpKind, because native calls read integers fastest.
ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, BARRIER, JOIN, ADD_PROCESS_SET, REMOVE_PROCESS_SET = map(
    int, OpKind
)
KIND_NAMES = tuple(kind.name.lower() for kind in OpKind)
_GROUP_NAMES = tuple(f"grouped_{name}" for name in KIND_NAMES)


@dataclass(frozen=True, slots=True)
class Call:
    """All arguments of a collective but its tensors. A field that does not apply to the kind keeps its default."""

    kind: int
    process_set: ProcessSet = global_process_set
    name: str | None = None
    op: int = rules.Sum
    prescale: float = 1.0
    postscale: float = 1.0
    grouped: bool = False  # True for any number of tensors that are processed as one unit
    in_place: bool = False  # for allreduce and broadcast: the result overwrites the tensor
    root: int = -1
    splits: Any = None  # the splits of an alltoall as the user passed them; None for equal shares
    received: int = -1  # in compiled programs: the number of rows that this rank gets from an alltoall with splits
    # In compiled programs: a number that distinguishes calls that look equal on this rank but may differ on others.
    serial: int = 0
    wire: int = AS_IT_IS  # id of the 16-bit type in which float32 values travel where that saves bytes
    # In compiled programs: True to return zeros on all ranks but `root`, for the gradient of a broadcast.
    only_root: bool = False
    # For a group: text that describes the tensors that every rank must have put into it; empty if not compared.
    contents: str = ""
    # For a group with contents: the number of tensors of the call that ranks make instead which do not compress; 0 if
    # there is no such call.
    uncompressed: int = 0

    @property
    def operation(self) -> str:
        """The name of the collective, such as grouped_allreduce."""
        return (_GROUP_NAMES if self.grouped and self.uncompressed != 1 else KIND_NAMES)[self.kind]

    @property
    def suffix(self) -> str:
        """Suffix that makes the name of the tensor with the contents that of the last tensor of the other call.

        The engine then finds that some ranks compress and others do not, and all of them get an error.
        """
        return names_in_group("", self.uncompressed)[-1] if self.uncompressed > 1 else ""


class TakesCalls(Protocol):
    """Anything that accepts calls for Collectives: the engine's World, or an object that stands in for it.

    A stand-in may pass a call on later and returns handles of its own. Arguments are those of World.submit.
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
        """Wait for an operation and release its handle."""

    def take_output(self, handle: int, index: int = 0, /) -> tuple[Output, int]: ...
    def received_splits(self, handle: int, members: int, /) -> list[int]: ...
    def release(self, handle: int, /) -> None: ...


def names_in_group(name: str, count: int) -> list[str]:
    """Return the names of a group's tensors."""
    return [f"{name}_{index}of{count}" for index in range(1, count + 1)]


def reduction_of(call: Call, dtype: int, member: Membership) -> Reduction:
    """Return the reduce operation and factors for the engine.

    Raise ValueError, NotImplementedError or HorovodInternalError if this dtype or this process set does not allow them.
    """
    if call.kind == ALLREDUCE:
        return rules.reduction(call.op, call.prescale, call.postscale, dtype, member.id)
    if call.kind == REDUCESCATTER:
        return rules.scatter_reduction(call.op, call.prescale, call.postscale, dtype, member.id)
    return PLAIN_SUM


def root_of(call: Call, member: Membership) -> int:
    """Return the root of a broadcast, which must be a member of the set. Return -1 for other collectives."""
    return rules.check_root(call.root, member.ranks) if call.kind == BROADCAST else -1


def result_shape(call: Call, shape: tuple[int, ...], member: Membership) -> tuple[int, ...]:
    """Return the shape of the result, which compiled programs need before they run.

    In compiled programs the tensors of all ranks have one shape.
    """
    if call.kind == ALLGATHER:
        rules.check_gather(shape, "allgather")
        return (shape[0] * member.size, *shape[1:])
    if call.kind == REDUCESCATTER:
        return rules.scattered_shape(shape, member.index, member.size)
    if call.kind == ALLTOALL:
        rules.alltoall_splits(shape, call.splits, member.size)
        return shape if call.splits is None else (call.received, *shape[1:])
    return shape
