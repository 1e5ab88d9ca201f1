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

from horovod.common import user_warnings
from horovod.common.context import default_context
from horovod.torch.gradients.parameter_check import ParameterCheck
from horovod.torch.gradients.rounds import CHECKSUM_BYTES, is_same, with_complement
from horovod.torch.layout import in_memory_order
from horovod.torch.mpi_ops import Adasum, Max, allreduce, allreduce_async_, rank, synchronize
from horovod.torch.parameter_names import Named
from horovod.torch.wrapping import Options, WrappedOptimizer, wrap


class _DistributedAdasumOptimizer(WrappedOptimizer):
    """What is added to the user's optimizer class; instances come from DistributedOptimizer(op=hvd.Adasum)."""

    _named: Named
    _checks_parameters: bool  # with the next step, and never again
    _starts: dict[torch.Tensor, torch.Tensor]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Nothing changes: gradients add up locally until step() is called."""
        self.backward_passes_per_step = passes

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
        here = [(name, parameter if parameter.requires_grad else None) for name, parameter in self._named]
        check = ParameterCheck(here) if self._checks_parameters else None
        said = bytes(CHECKSUM_BYTES * 2) if check is None else with_complement(check.checksum())
        heard = self._exchange(said + bytes(parameter is not None for _, parameter in here))
        self._checks_parameters = False
        checksum, flags = heard[: len(said)], heard[len(said) :]
        if any(checksum) and not is_same(checksum):
            check = check or ParameterCheck([(name, None) for name, _ in here])
            ranks = self.process_set.ranks or ()
            if text := check.find_difference(ranks, rank(), lambda it: self._exchange(it, "parameters.")):
                user_warnings.warn(text)
        return [it for it, flag in zip(self._named, flags, strict=True) if flag]

    def _exchange(self, message: bytes, topic: str = "") -> bytes:
        sent = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        name = f"DistributedOptimizer.{topic}{self._named[0][0]}"
        return allreduce(sent, name=name, op=Max, process_set=self.process_set).numpy().tobytes()

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
            handle = allreduce_async_(in_memory_order(sent), None, name, Adasum, 1.0, 1.0, self.process_set)
            under_way.append((handle, parameter, sent, context))
        for handle, parameter, sent, context in under_way:
            synchronize(handle)
            delta = self._compression.decompress(sent, context)
            torch.add(self._starts[parameter], delta, out=parameter.detach())


def make_adasum_optimizer(optimizer: torch.optim.Optimizer, named: Named, options: Options) -> WrappedOptimizer:
    """The given optimizer, its steps combined by Adasum."""
    wrapped = wrap(optimizer, _DistributedAdasumOptimizer, named, options)
    wrapped._named = named
    wrapped._starts = {}
    wrapped._checks_parameters = default_context.settings.flag("HOROVOD_CHECK_PARAMETERS")
    return wrapped
