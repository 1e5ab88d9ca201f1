# SPDX-License-Identifier: Apache-2.0
"""Argument of a communication hook: the gradients of one bucket, and collectives to reduce them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias

import torch

from horovod.common.calls import ALLGATHER, ALLREDUCE, ALLTOALL, Call
from horovod.common.process_sets import ProcessSet
from horovod.common.rules import Average
from horovod.torch.hooks.collectives import Collective, Handle, Several

Tensor = torch.Tensor


class Bucket:
    """The gradients of some parameters as one flat tensor, and what a hook needs to reduce them over all ranks.

    Attributes:
            index: Index of the bucket in the layout, equal on all ranks and in every step.
        is_last: True for the last bucket of the layout.
        tensor: A flat copy of the gradients, with zeros for parameters without one. Gradients narrower than float32
            are float32 here. The hook may write to it and return it. It is valid until the hook returns.
        gradients: Views of `tensor` by the names of the parameters, in their shapes.
            op: hvd.Average or hvd.Sum, as given to the optimizer.
            process_set, size, rank: The ranks that reduce together, their number, and this rank's index among them.
    """

    def __init__(
        self,
        index: int,
        is_last: bool,
        tensor: Tensor,
        gradients: Mapping[str, Tensor],
        reduction: Call,
        name_of: Callable[[str], str],
    ) -> None:
        """Make a bucket.

        `reduction` is the optimizer's own allreduce. `name_of` returns the name on the wire for the name of a stage.
        """
        self.index = index
        self.is_last = is_last
        self.tensor = tensor
        self.gradients = gradients
        self.op = reduction.op
        self.process_set: ProcessSet = reduction.process_set
        self.size = self.process_set.size() or 1
        self.rank = self.process_set.rank() or 0
        self._reduction = reduction
        self._name_of = name_of
        self._label = ""
        self._begun: list[Collective] = []

    def allreduce_async(self, tensor: Tensor, op: int | None = None, stage: str = "allreduce") -> Handle:
        """Begin to reduce a tensor in place; yield the handle to get it. `op` defaults to the optimizer's."""
        given = self._reduction if op is None else Call(ALLREDUCE, self.process_set, op=op)
        factors = (given.prescale, given.postscale)
        call = Call(ALLREDUCE, self.process_set, self.wire_name(stage), given.op, *factors, in_place=True)
        return self._begin(call, tensor)

    def allgather_async(self, tensor: Tensor, stage: str = "allgather", same_size: bool = False) -> Handle:
        """Begin to gather every rank's tensor; yield the handle to get a list of them by rank.

        Tensors may differ in their first dimension. `same_size` promises that they do not, which saves a message.
        """
        call = Call(ALLGATHER, self.process_set, self.wire_name(stage))
        if same_size:
            rows = [tensor.shape[0]] * self.size
            return self._begin(call, tensor, lambda gathered: list(gathered.split(rows)))
        sizes = Call(ALLGATHER, self.process_set, self.wire_name(f"{stage}.sizes"))
        return Several([self._begin(call, tensor), self._begin(sizes, torch.tensor([tensor.shape[0]]))], _split)

    def alltoall_async(self, tensor: Tensor, splits: Any = None, stage: str = "alltoall") -> Handle:
        """Begin to send each rank its rows of a tensor; yield the handle to get (received rows, rows of each rank).

        Without `splits` all ranks get equal shares.
        """
        return self._begin(Call(ALLTOALL, self.process_set, self.wire_name(stage), splits=splits), tensor)

    def wire_name(self, stage: str) -> str:
        """Return the name of a stage's collective on the wire. It changes if a hook has failed on any rank."""
        return self._name_of(self._label + stage)

    def label(self, text: str) -> None:
        """Prefix the names of later stages, which the timeline shows, with `text`; an empty one means no prefix."""
        self._label = f"{text}." if text else ""

    def average(self, total: Tensor) -> Tensor:
        """Turn a sum over all ranks, in place, into the optimizer's result: the mean, or the sum for op=hvd.Sum.

        gradient_predivide_factor has no effect here: it divides before the sum and multiplies after it.
        """
        return total.div_(self.size) if self.op == Average else total

    def is_finite(self, tensor: Tensor) -> bool:
        """Return True if a tensor has no NaN and no infinity. Keep a new residual only if the result is finite."""
        # The sum is finite only if all values are, and needs one pass. It may also overflow, so then check each value.
        return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())

    def abandon(self) -> None:
        """Keep alive the tensors of collectives that the ended hook began but did not wait for."""
        begun, self._begun = self._begun, []
        for collective in begun:
            collective.abandon()

    def _begin(self, call: Call, tensor: Tensor, change: Callable[[Any], Any] | None = None) -> Collective:
        collective = Collective(call, tensor, change)
        self._begun.append(collective)
        return collective


# A hook is called with a bucket and returns a generator.
# The generator yields handles, is sent their results, and returns a flat tensor of the size of bucket.tensor.
Running: TypeAlias = Generator[Any, Any, Tensor]
CommHook: TypeAlias = Callable[[Bucket], Running]


def _split(results: list[Any]) -> list[Tensor]:
    gathered, sizes = results
    return list(gathered.split(sizes.tolist()))
