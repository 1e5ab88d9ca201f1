# SPDX-License-Identifier: Apache-2.0
"""Gradients as views of memory that ranks share, so that they are reduced without copies.

Ranks of a host share its memory; ranks that use one GPU share the GPU's. On the host this pays if the program keeps
gradients between steps with zero_grad(set_to_none=False), because autograd then writes into the shared memory. A
gradient that autograd has allocated elsewhere is copied into the shared memory once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from horovod._engine import EngineError, GradientTable
from horovod.common import shared_buffers
from horovod.common.context import default_context
from horovod.common.log import logger
from horovod.common.process_sets import ProcessSet
from horovod.torch.gradients import gpu_memory

Tensor = torch.Tensor

_ALIGNMENT = 64  # a cache line, so that no two gradients share one


def is_on_gpu(parameter: Tensor) -> bool:
    """Return True if this parameter's gradient may lie in GPU memory that ranks share."""
    return parameter.is_cuda


class GradientBuckets:
    """Shared memory for gradients: one block per device, holding a view with the parameter's strides for each."""

    def __init__(self, parameters: Sequence[Tensor], process_set: ProcessSet) -> None:
        self._on_host: list[tuple[int, Tensor]] = []  # parameters in host memory, with their numbers
        self._on_gpus: dict[torch.device, list[Tensor]] = {}
        for number, parameter in enumerate(parameters):
            if is_on_gpu(parameter):
                self._on_gpus.setdefault(parameter.device, []).append(parameter)
            elif parameter.is_cpu:
                self._on_host.append((number, parameter))
        self._process_set = process_set
        self._places: dict[Tensor, Tensor] = {}
        self._world: object = None
        self._unsettled: list[torch.device] = []  # GPUs whose shared memory is not decided yet

    def put_places_into(self, table: GradientTable) -> None:
        """Make the views if this generation has none yet, and enter the host's views into the table."""
        # Memory belongs to the generation that allocated it.
        if self._world is not default_context.world:
            before, self._places = self._places, {}
            self._unsettled = list(self._on_gpus)
            self._make_places_on_host(before)
            for number, parameter in self._on_host:
                table.set_place(number, self._places[parameter])
            self._world = default_context.world
        if self._unsettled:
            self._unsettled = [device for device in self._unsettled if not self._settle(device)]

    def adopt(self, parameters: Sequence[Tensor]) -> bool:
        """Move gradients into their views. Return True if any in host memory was elsewhere."""
        moved = [it for it in parameters if self._is_elsewhere(it)]
        if not moved:
            return False
        on_host = [it for it in moved if not is_on_gpu(it)]
        with torch.no_grad():
            for parameter in on_host:
                self._places[parameter].copy_(parameter.grad)  # type: ignore[arg-type]
            for device in self._on_gpus:  # one call per device launches few kernels for many gradients
                here = [it for it in moved if is_on_gpu(it) and it.device == device]
                if here:
                    torch._foreach_copy_([self._places[it] for it in here], [it.grad for it in here])  # type: ignore[misc]
        for parameter in moved:
            parameter.grad = self._places[parameter]
        return bool(on_host)

    def _is_elsewhere(self, parameter: Tensor) -> bool:
        grad, place = parameter.grad, self._places.get(parameter)
        return grad is not None and not grad.is_sparse and place is not None and grad is not place

    def _settle(self, device: torch.device) -> bool:
        """Return True if ranks know by now whether they share this GPU's memory. If they do, make the views there."""
        parameters = self._on_gpus[device]
        try:
            memory = gpu_memory.allocate(self._process_set, device, _layout(parameters)[-1])
        except EngineError as error:
            logger.info("gradients on %s stay in the memory that torch allocates: %s", device, error.args[1])
            return True
        if memory is None:
            return False
        self._make_places(parameters, memory)
        return True

    def _make_places_on_host(self, before: dict[Tensor, Tensor]) -> None:
        """Make the views in host memory. Gradients in views of an earlier generation move to the new ones."""
        if not self._on_host:
            return
        parameters = [parameter for _, parameter in self._on_host]
        memory = torch.from_numpy(shared_buffers.allocate(default_context, _layout(parameters)[-1]))
        self._make_places(parameters, memory)
        self.adopt([it for it in parameters if it.grad is not None and it.grad is before.get(it)])

    def _make_places(self, parameters: Sequence[Tensor], memory: Tensor) -> None:
        for parameter, start in zip(parameters, _layout(parameters), strict=False):
            run = memory[start : start + parameter.numel() * parameter.element_size()].view(parameter.dtype)
            # Use the strides that zeros_like would give: the parameter's if it is dense, else contiguous ones.
            strides = torch.empty_like(parameter, device="meta").stride()
            self._places[parameter] = run.as_strided(parameter.shape, strides, run.storage_offset())


def _layout(parameters: Sequence[Tensor]) -> list[int]:
    """Return the offset in bytes at which each parameter's view begins, and finally the total size."""
    starts = [0]
    for parameter in parameters:
        size = parameter.numel() * parameter.element_size()
        starts.append(starts[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    return starts
