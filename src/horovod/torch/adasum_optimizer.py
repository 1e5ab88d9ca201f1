# SPDX-License-Identifier: Apache-2.0
"""Adasum on steps, not on gradients: every rank makes its own step, and the steps are combined.

Adasum adds orthogonal directions and averages parallel ones. What an optimizer makes of a gradient (momentum, Adam's
scaling) decides the direction, so that is what must be combined.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from horovod.common.process_sets import ProcessSet
from horovod.torch.compression import Compressor
from horovod.torch.layout import in_memory_order
from horovod.torch.mpi_ops import Adasum, Max, allreduce, allreduce_async_, synchronize
from horovod.torch.parameter_names import Named
from horovod.torch.wrapping import wrap


class _DistributedAdasumOptimizer(torch.optim.Optimizer):
    """What is added to the user's optimizer class; instances come from DistributedOptimizer(op=hvd.Adasum)."""

    _named: Named
    _compression: type[Compressor]
    _process_set: ProcessSet
    _starts: dict[torch.Tensor, torch.Tensor]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Nothing to set: gradients add up locally until step() is called."""

    def synchronize(self) -> None:
        """Nothing to wait for: steps are combined in step()."""

    def skip_synchronize(self) -> AbstractContextManager[None]:
        raise AssertionError("skip_synchronize() is not supported with op=hvd.Adasum: steps are combined in step()")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make the local step, then replace it by the combination of all ranks' steps."""
        trained = self._trained_anywhere()
        with torch.no_grad():
            for _, parameter in trained:
                self._start_of(parameter).copy_(parameter)
        loss = super().step(closure)
        with torch.no_grad():
            self._combine(trained)
        return loss

    # See _DistributedOptimizer.step.
    step.hooked = True  # type: ignore[attr-defined]

    def _trained_anywhere(self) -> Named:
        """A parameter that one rank has frozen has a step of zeros there: the others wait for it."""
        flags = torch.tensor([parameter.requires_grad for _, parameter in self._named], dtype=torch.uint8)
        name = f"DistributedOptimizer.{self._named[0][0]}"
        flags = allreduce(flags, name=name, op=Max, process_set=self._process_set)
        return [it for it, flag in zip(self._named, flags.tolist(), strict=True) if flag]

    def _start_of(self, parameter: torch.Tensor) -> torch.Tensor:
        start = self._starts.get(parameter)
        if start is None:
            start = self._starts[parameter] = torch.empty_like(parameter, requires_grad=False)
        return start

    def _combine(self, trained: Named) -> None:
        under_way = []
        for name, parameter in trained:
            delta = parameter.detach().sub_(self._starts[parameter])
            sent, context = self._compression.compress(delta)
            handle = allreduce_async_(in_memory_order(sent), None, name, Adasum, 1.0, 1.0, self._process_set)
            under_way.append((handle, parameter, sent, context))
        for handle, parameter, sent, context in under_way:
            synchronize(handle)
            delta = self._compression.decompress(sent, context)
            torch.add(self._starts[parameter], delta, out=parameter.detach())


def make_adasum_optimizer(
    optimizer: torch.optim.Optimizer, named: Named, compression: type[Compressor], process_set: ProcessSet
) -> torch.optim.Optimizer:
    """The given optimizer, its steps combined by Adasum."""
    wrapped = wrap(optimizer, _DistributedAdasumOptimizer)
    wrapped._named, wrapped._compression, wrapped._process_set = named, compression, process_set
    wrapped._starts = {}
    return wrapped
