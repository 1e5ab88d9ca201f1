# SPDX-License-Identifier: Apache-2.0
"""Gradients as views of memory that the ranks of a host share, so that nothing is staged on the way to the others.

Worth it for those who keep gradients between steps, zero_grad(set_to_none=False): then autograd itself writes there. A
gradient that autograd has made elsewhere is copied to its place once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from horovod._engine import GradientTable
from horovod.common import shared_buffers
from horovod.common.context import default_context

Tensor = torch.Tensor

_ALIGNMENT = 64  # a cache line: no two gradients share one


class GradientBuckets:
    """One run of shared memory with a place for each parameter's gradient, strides as the parameter's."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._numbered = [(number, it) for number, it in enumerate(parameters) if it.is_cpu]
        self._places: dict[Tensor, Tensor] = {}
        self._world: object = None

    def put_places_into(self, table: GradientTable) -> None:
        """See to it that the places exist, and that the table knows them by the numbers of their parameters."""
        # Memory belongs to the generation that allocated it.
        if self._world is not default_context.world:
            self._make_places()
            for number, parameter in self._numbered:
                table.set_place(number, self._places[parameter])

    def adopt(self, parameter: Tensor) -> bool:
        """See to it that a parameter's gradient lies in its place. Whether it was elsewhere."""
        place = self._places.get(parameter)
        if place is None or parameter.grad is place or parameter.grad is None:
            return False
        with torch.no_grad():
            place.copy_(parameter.grad)
        parameter.grad = place
        return True

    def _make_places(self) -> None:
        parameters = [parameter for _, parameter in self._numbered]
        sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
        memory = torch.from_numpy(shared_buffers.allocate(default_context, starts[-1]))
        before, self._places = self._places, {}
        for parameter, start, size in zip(parameters, starts, sizes, strict=False):
            run = memory[start : start + size].view(parameter.dtype)
            # What zeros_like would give: the parameter's strides if it is dense, else contiguous ones.
            strides = torch.empty_like(parameter, device="meta").stride()
            place = self._places[parameter] = run.as_strided(parameter.shape, strides, run.storage_offset())
            if parameter.grad is not None and parameter.grad is before.get(parameter):
                place.copy_(parameter.grad)
                parameter.grad = place
        self._world = default_context.world
