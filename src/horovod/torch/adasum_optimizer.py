# SPDX-License-Identifier: Apache-2.0
"""Adasum of steps instead of gradients: every rank makes its own step, and the steps are combined.

Adasum adds orthogonal directions and averages parallel ones. An optimizer's step has another direction than the
gradient because of momentum or Adam's scaling, so the steps have to be combined.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from horovod.common.context import default_context
from horovod.torch.gradients import conversations
from horovod.torch.gradients.first_look import FirstLook
from horovod.torch.gradients.known_optimizers import KnownOptimizer, describe
from horovod.torch.gradients.round_messages import Pending
from horovod.torch.gradients.rounds import LOOK_BYTES, Place, Seen
from horovod.torch.layout import in_memory_order
from horovod.torch.mpi_ops import Adasum, allreduce_async_, synchronize
from horovod.torch.parameter_names import Named
from horovod.torch.wrapping import Options, WrappedOptimizer, wrap


class _DistributedAdasumOptimizer(WrappedOptimizer):
    """Mixin that DistributedOptimizer(op=hvd.Adasum) adds to the user's optimizer class."""

    _named: Named
    _known: KnownOptimizer
    _look: FirstLook
    _flags: bytes  # one byte per parameter: whether any rank trains it
    _with_suffix: set[int]
    _starts: dict[torch.Tensor, torch.Tensor]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the attribute only, because gradients accumulate locally until step() is called."""
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Do nothing, because step() combines the ranks' steps."""

    def skip_synchronize(self) -> AbstractContextManager[None]:
        raise AssertionError("skip_synchronize() is not supported with op=hvd.Adasum: steps are combined in step()")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make the local step, then replace it by the combination of all ranks' steps."""
        self._count_step()
        trained = self._trained_anywhere()
        with torch.no_grad():
            for _, parameter in trained:
                self._start_of(parameter).copy_(parameter)
        loss = super().step(closure)
        with torch.no_grad():
            self._combine(trained)
        return loss

    # Set as in _DistributedOptimizer, so that load_state_dict() does not wrap step() again.
    step.hooked = True  # type: ignore[attr-defined]

    def _watch(self, name: str, parameter: torch.Tensor) -> None:
        self._named = [*self._named, (name, parameter)]

    def _trained_anywhere(self) -> Named:
        """Return the parameters that any rank trains, with the names that ranks have agreed on.

        A rank that has frozen such a parameter contributes a step of zeros, because other ranks wait for it.
        """
        if self._known.enter_era():
            self._look.look_around()
        conversations.hold_one(self._conversation())
        self._look.warn()
        return [
            (name + (self._known.suffix if number in self._with_suffix else ""), parameter)
            for number, ((name, parameter), flag) in enumerate(zip(self._named, self._flags, strict=True))
            if flag
        ]

    def _conversation(self) -> conversations.Conversation:
        here = [(name, parameter if parameter.requires_grad else None) for name, parameter in self._named]
        message = self._look.said(lambda: here) + bytes(parameter is not None for _, parameter in here)
        answer = yield Pending(message, Place.STEP, self._known)
        seen, self._flags = Seen.of(answer[:LOOK_BYTES]), answer[LOOK_BYTES:]
        if not self._known.has_agreed:
            self._with_suffix = set(self._known.agree(seen.names))
        if seen.parameters_differ:
            yield from self._look.find_difference(seen, Place.STEP)
        self._look.is_over()

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
    """Return the given optimizer with its steps combined by Adasum."""
    wrapped = wrap(optimizer, _DistributedAdasumOptimizer, named, options)
    wrapped._named = named
    wrapped._starts = {}
    wrapped._flags, wrapped._with_suffix = b"", set()
    wrapped._known = KnownOptimizer(options.process_set, describe(optimizer))
    weakref.finalize(wrapped, wrapped._known.forget)
    for name, parameter in named:
        wrapped._known.add(name, parameter)
    wrapped._look = FirstLook(wrapped._known, default_context.settings.flag("HOROVOD_CHECK_PARAMETERS"))
    return wrapped
