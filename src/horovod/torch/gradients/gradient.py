# SPDX-License-Identifier: Apache-2.0
"""Gradients of one optimizer with all that is known of each: name, parameter, hook, group and form.

The native table counts each gradient's passes in the round, under its number. The sets below name the gradients that
need attention, so that a round without changes does not look at each gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from horovod._engine import GradientTable
from horovod.common.calls import Call
from horovod.common.context import default_context
from horovod.common.dtypes import AS_IT_IS, FLOAT32
from horovod.common.exceptions import HorovodMismatchError
from horovod.common.rules import Adasum, check_name
from horovod.torch.adapter import ID_BY_DTYPE, tensor_reader
from horovod.torch.compression import Compressor, NoneCompressor
from horovod.torch.gradients.forms import make_gradient
from horovod.torch.gradients.rounds import FROZEN, Reduce
from horovod.torch.hooks.flat import FlatBucket
from horovod.torch.hooks.layout import BucketPlan, Layout

Tensor = torch.Tensor
_BUNDLED_BYTES = 4096  # copying a larger one costs as much as bundling saves


@dataclass(frozen=True)
class Reduction:
    """Settings of the reduction, equal for all parameters of an optimizer."""

    call: Call  # in place, without a name; `wire` is the dtype that the engine sends float32 as
    compression: type[Compressor]
    sparse_as_dense: bool

    @property
    def plain_dtypes(self) -> list[int]:
        """Dtype ids of gradients that can be submitted as they are, without calling a compressor in Python.

        A user's compressor has to process all gradients. The built-in ones process those that the engine does not
        convert.
        """
        if self.compression is NoneCompressor:
            return list(ID_BY_DTYPE.values())
        return [FLOAT32] if self.call.wire != AS_IT_IS else []


class Gradient:
    """Gradient of one parameter, with its names on the wire, its group and its hook."""

    __slots__ = ("full_name", "group", "hook", "name", "number", "parameter", "sparse", "suffix", "wire_name")

    def __init__(self, name: str, number: int, parameter: Tensor) -> None:
        self.name = name
        self.append("")
        self.number = number
        self.parameter = parameter
        self.sparse = False  # True if its rows are gathered, or made dense for the reduction; equal on all ranks
        self.group: Group | None = None
        self.hook: Any = None  # None while the parameter needs no gradient

    def append(self, suffix: str) -> None:
        """Set a suffix of the name on the wire, for when another optimizer has a parameter of an equal name."""
        self.suffix = suffix
        self.wire_name = self.name + suffix
        self.full_name = check_name(f"allreduce.{self.wire_name}")


class Group:
    """Gradients that are reduced as one unit, once all of them are due or no more follow in this round."""

    __slots__ = ("bucket", "gradients", "waiting")

    def __init__(self, gradients: list[Gradient], bucket: FlatBucket | None = None) -> None:
        """Make a group; `bucket` is what a communication hook is given for it."""
        self.gradients = gradients
        self.bucket = bucket
        self.waiting: set[Gradient] = set()

    @property
    def wire_name(self) -> str:
        """Name by which ranks match this group."""
        first, last = self.gradients[0], self.gradients[-1]
        return ".".join((first.name, last.name, str(len(self.gradients)))) + first.suffix


def _plan_of(group: Group) -> BucketPlan | None:
    return None if group.bucket is None else group.bucket.plan


class Leave(Enum):
    """Choice of the due gradients whose reduction begins later."""

    NONE = 0
    SMALL = 1  # those small enough to be bundled
    ALL = 2  # all: ranks have not agreed on names, or another optimizer has some of these parameters


class Gradients:
    """Gradients of one optimizer, by their numbers from 0 on."""

    def __init__(self, reduction: Reduction) -> None:
        call = reduction.call
        self.table = GradientTable(
            tensor_reader(), reduction.plain_dtypes, call.op, call.prescale, call.postscale, call.wire
        )
        # Do not bundle for a timeline, which shows each gradient by itself, nor for Adasum, whose result depends on
        # what counts as one tensor.
        self.bundles = call.op != Adasum and default_context.settings["HOROVOD_TIMELINE"] is None
        self.groups: list[Group] = []
        self._all: list[Gradient] = []
        self._travel_dense = reduction.sparse_as_dense  # sparse gradients are made dense for the reduction
        self._unhooked: set[Gradient] = set()  # whose parameters have not needed a gradient so far
        self._unseen: set[int] = set()  # not yet seen, so that it is unknown whether they are sparse
        self._sparse: set[int] = set()
        self._lent: set[int] = set()  # reduced in this round only because other ranks have them
        self._left: list[int] = []  # due, but not begun yet
        self._are_postponed = False  # True if `_left` waits for step(), before which the program may drop gradients
        self._in_buckets = False  # True if a communication hook reduces gradients in buckets

    def __getitem__(self, number: int) -> Gradient:
        return self._all[number]

    def __iter__(self) -> Iterator[Gradient]:
        return iter(self._all)

    # Registration

    def add(self, name: str, parameter: Tensor) -> Gradient:
        gradient = Gradient(name, len(self._all), parameter)
        self._all.append(gradient)
        small = self.bundles and parameter.is_cpu and parameter.nbytes <= _BUNDLED_BYTES
        self.table.add(gradient.full_name, parameter, small)
        if self._in_buckets:  # ranks first have to agree on a bucket for it
            self.table.leave_to_caller(gradient.number)
        self._unseen.add(gradient.number)
        self._unhooked.add(gradient)
        return gradient

    def hooked(self, gradient: Gradient, hook: Any) -> None:
        self._unhooked.discard(gradient)
        gradient.hook = hook

    def thawed(self, standings: bytes) -> list[Gradient]:
        """Return the gradients without a hook whose parameters need a gradient by now."""
        return [it for it in self._unhooked if standings[it.number] != FROZEN]

    def trained(self, standings: bytes) -> list[tuple[str, Tensor | None]]:
        """Return the parameters with their names; None stands for a parameter that is frozen on this rank."""
        return [(it.name, None if standings[it.number] == FROZEN else it.parameter) for it in self._all]

    def rename(self, numbers: Iterable[int], suffix: str) -> None:
        """Give gradients names that end with the suffix. None of them may be in flight."""
        for number in numbers:
            gradient = self._all[number]
            if gradient.suffix != suffix:
                gradient.append(suffix)
                self.table.rename(number, gradient.full_name)

    def rename_all(self, suffix: str) -> None:
        """Give all gradients names that end with the suffix."""
        self.rename(range(len(self._all)), suffix)

    def make_groups(self, groups: Sequence[Sequence[str]]) -> None:
        by_name = {gradient.name: gradient for gradient in self._all}
        for names in groups:
            group = Group([by_name[name] for name in names])
            self.groups.append(group)
            for gradient in group.gradients:
                gradient.group = group
                self.table.leave_to_caller(gradient.number)

    def make_buckets(self, layout: Layout) -> None:
        """Reduce all gradients in these buckets, by a communication hook. Buckets that do not change are kept."""
        kept = [group for group in self.groups if group.bucket is not None]
        same = 0  # number of unchanged buckets at the beginning; all later ones are made anew
        while same < min(len(kept), len(layout)) and _plan_of(kept[same]) == layout[same]:
            same += 1
        self.groups = kept[:same]
        by_name = {gradient.name: gradient for gradient in self._all}
        for index in range(len(self.groups), len(layout)):
            members = [by_name[name] for name in layout[index].names]
            self.groups.append(Group(members, FlatBucket(index, layout[index], members)))
        group_of = {gradient: group for group in self.groups for gradient in group.gradients}
        for gradient in self._all:
            gradient.group = group_of.get(gradient)
            self.table.leave_to_caller(gradient.number)
        self.bundles = False
        self._in_buckets = True

    # Rounds

    def restart(self, passes: int) -> None:
        """Begin a new round, of this many passes for each gradient."""
        self._lent.clear()
        self._left.clear()
        self._are_postponed = False
        self.table.restart(passes)

    def agree(self, agreed: Reduce) -> list[int]:
        """Record which gradients all ranks reduce. Return the numbers of those not due here, which may get zeros."""
        if agreed.sparse or (self._sparse and agreed.wanted):
            self._take_form(agreed)
        missing = self.table.agree(agreed.wanted)
        for number in missing:
            make_gradient(self._all[number].parameter, self._all[number].sparse)
        self._lent.update(missing)
        return missing

    def with_left(self, due: list[int], leave: Leave) -> list[int]:
        """Return these gradients and those left earlier, without those that are to be left now."""
        if self._left:
            due = list(dict.fromkeys(self._left + due))
            self._left = []
        if self._are_postponed:
            self._are_postponed = False
            for gradient in map(self._all.__getitem__, due):
                make_gradient(gradient.parameter, gradient.sparse)
        if leave is Leave.SMALL:
            self._left, due = self.table.split_small(due)
        elif leave is Leave.ALL:
            self._left, due = due, []
            self.table.postpone(self._left)
            self._are_postponed = True
        return due

    @property
    def has_left(self) -> bool:
        """Return True if gradients are due that would be in flight if they were sent before step()."""
        left = {self._all[number] for number in self._left}
        return any(it.group is None or left.issuperset(it.group.gradients) for it in left)

    def is_lent(self, number: int) -> bool:
        return number in self._lent

    # Sparse gradients

    def look_at(self, due: Sequence[int]) -> None:
        """Record which gradients are sparse, by the first gradient of each; other ranks must know it in advance."""
        if not self._unseen:
            return
        numbers = self._unseen.intersection(due)
        self._unseen -= numbers
        for gradient in map(self._all.__getitem__, numbers):
            grad = gradient.parameter.grad
            if grad is not None and grad.is_sparse and (gradient.group is None or self._in_buckets):
                self._set_sparse(gradient, True)

    def _take_form(self, agreed: Reduce) -> None:
        """Make those gradients sparse that ranks have agreed on, and all others dense."""
        here = {number for number in self._sparse if agreed.wanted[number]}
        for number in here.symmetric_difference(agreed.sparse):
            gradient = self._all[number]
            if self.table.in_flight([number]) and not self._travel_dense:
                raise HorovodMismatchError(
                    f"The gradient of {gradient.name} is dense on some ranks and sparse on others"
                )
            self._unseen.discard(number)
            self._set_sparse(gradient, number in agreed.sparse)

    def _set_sparse(self, gradient: Gradient, sparse: bool) -> None:
        (self._sparse.add if sparse else self._sparse.discard)(gradient.number)
        gradient.sparse = sparse
        self.table.set_sparse(gradient.number, sparse)
        if sparse:
            self.table.leave_to_caller(gradient.number)  # saves the table an attempt that would always fail
