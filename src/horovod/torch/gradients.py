# SPDX-License-Identifier: Apache-2.0
"""Gradients on their way from backward() to step(): hooks tell of each as soon as autograd is done with it.

A round begins with the first backward pass after a step and ends with synchronize(). In it every parameter counts down
its passes; at zero its gradient is reduced, alone or with its group. Names, not order, match gradients across ranks.

Where backward() waits for its gradients, ranks whose graphs differ would wait for each other for ever. So they first
tell each other what they have begun, and give zeros to what only others have: one small allreduce per backward().
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from horovod._engine import Arrivals, EngineError, GradientHomes
from horovod.common.handles import translate
from horovod.torch import mpi_ops
from horovod.torch.dynamo import outside_dynamo
from horovod.torch.flights import Flights, Gradient, Group, Reduction
from horovod.torch.gradient_buckets import GradientBuckets

Tensor = torch.Tensor

# A call and a wake-up for each small gradient would cost more than its reduction: they wait until so many bytes are
# together, or for the end of backward().
_CARGO_BYTES = 512 * 1024
_NO_LIMIT = 1 << 62

_TOO_MANY_PASSES = (
    "The gradient of {name} was computed again before optimizer.step(): more than backward_passes_per_step={passes} "
    "backward passes. Raise backward_passes_per_step to accumulate gradients over several passes, or call "
    "optimizer.step() or optimizer.zero_grad() between them."
)


class GradientReducer:
    """Watches the parameters of one optimizer and reduces their gradients."""

    def __init__(
        self,
        reduction: Reduction,
        named: Iterable[tuple[str, Tensor]],
        passes: int,
        wait_in_backward: bool,
        overlap: bool,
        buckets: GradientBuckets | None,
        homes: GradientHomes | None,
    ) -> None:
        self._process_set = reduction.process_set
        self._passes = passes
        self._wait_in_backward = wait_in_backward
        self._homes = homes
        self._flights = Flights(reduction, buckets, homes)
        self._table = self._flights.table  # for each gradient how far it is in this round
        self._table.restart(passes)
        # Hooks of an optimizer that is gone must not reduce anything any more, nor keep it.
        self._arrived = Arrivals(_CARGO_BYTES if overlap else _NO_LIMIT, _notifier(weakref.ref(self)))
        self._callback_queued = False
        self._complete = False  # every gradient of this round is reduced, on all ranks
        self._lock = threading.Lock()  # with several devices autograd calls hooks from several threads
        self._gradients: list[Gradient] = []
        self._groups: list[Group] = []
        for name, parameter in named:
            self.watch(name, parameter)

    # What is watched

    def watch(self, name: str, parameter: Tensor) -> None:
        """Reduce a parameter's gradients from now on; one that needs none yet is looked at again in each round."""
        gradient = Gradient(name, len(self._gradients), parameter)
        self._gradients.append(gradient)
        self._flights.add(gradient)
        self._hook(gradient)

    def _hook(self, gradient: Gradient) -> None:
        parameter = gradient.parameter
        if gradient.hook is None and parameter.requires_grad:
            register: Any = parameter.register_post_accumulate_grad_hook
            nbytes, homes = (parameter.nbytes, self._homes) if parameter.is_cpu else (_NO_LIMIT, None)
            gradient.hook = register(self._arrived.hook(gradient.number, nbytes, homes))

    def unwatch(self) -> None:
        """Remove all hooks."""
        for gradient in self._gradients:
            if gradient.hook is not None:
                gradient.hook.remove()
                gradient.hook = None

    def make_groups(self, groups: Sequence[Sequence[str]]) -> None:
        """Reduce the named parameters of each list as one unit."""
        by_name = {gradient.name: gradient for gradient in self._gradients}
        for names in groups:
            group = Group(".".join((names[0], names[-1], str(len(names)))), [by_name[name] for name in names])
            for gradient in group.gradients:
                gradient.group = group
                self._table.leave_to_caller(gradient.number)
            self._groups.append(group)

    # Rounds

    @property
    def busy(self) -> bool:
        """Whether reductions are under way."""
        return bool(self._flights or self._arrived)

    def set_passes(self, passes: int) -> None:
        self._passes = passes
        self.restart()

    def restart(self) -> None:
        """Forget the round: every parameter counts its passes anew."""
        self._flights.clear()
        self._arrived.take()
        self._callback_queued = False
        self._complete = False
        self._table.restart(self._passes)
        for group in self._groups:
            group.ready.clear()

    @outside_dynamo
    def forget_reduced(self) -> None:
        """Gradients were dropped or zeroed after they had been reduced: the next pass begins a new round for them."""
        self._callback_queued = False
        self._complete = False
        self._table.forget_reduced()

    @outside_dynamo
    def finish_round(self) -> None:
        """Reduce what no pass of this round has brought, too, and wait for everything.

        A parameter without a gradient contributes zeros: other ranks, with another graph, may have one for it.
        """
        try:
            if self._wait_in_backward and not self._complete:
                while self._agree(in_backward=False):
                    pass
            if not self._complete:
                every = bytes(gradient.parameter.requires_grad for gradient in self._gradients)
                self._begin(self._due(), every, will_wait=True)
            self._flights.wait()
        finally:
            self.restart()

    def _agree(self, in_backward: bool) -> bool:
        """Tell the others which reductions are due here, join in those that are due there, wait for all of them.

        True if some rank is at the end of a backward pass and may begin more, False if all have come to their step.
        """
        # Nothing begins before the others have come: what they were sent earlier would only wake a thread there that
        # takes the processor from their backward().
        due = self._due()
        anywhere = self._exchange(in_backward)
        self._begin(due, anywhere, will_wait=True)
        self._wait()
        count = len(self._gradients)
        self._complete = anywhere.count(1, 0, count) == count
        return bool(anywhere[count])

    def _exchange(self, in_backward: bool) -> bytes:
        name = f"allreduce.begun.{self._gradients[0].name}"
        try:
            return self._table.exchange(mpi_ops.native_member(self._process_set), name, mpi_ops.Max, in_backward)
        except EngineError as error:
            raise translate(error, name) from None

    def _wait(self) -> None:
        try:
            self._flights.wait()
        except Exception:
            self.restart()
            raise

    # Hooks

    def notified(self) -> None:
        """A hook has told of the first of some gradients, or of one with which they are many bytes."""
        if not self._callback_queued:
            self._callback_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)
        if self._arrived.full:
            self._begin(self._due(), b"", will_wait=False)

    def _due(self) -> list[int]:
        """The numbers of gradients that have come to their last pass since this was called last."""
        with self._lock:
            due, refused = self._table.count_down(self._arrived.take())
            if refused is not None:
                name = self._gradients[refused].name
                raise AssertionError(_TOO_MANY_PASSES.format(name=name, passes=self._passes))
            return due

    def _begin(self, due: list[int], wanted: bytes, will_wait: bool) -> None:
        """Begin these reductions, and those that are not due here of gradients that `wanted` has a 1 for."""
        with self._lock:
            missing = self._table.missing(wanted)
            for number in missing:
                self._hook(self._gradients[number])
                _make_gradient(self._gradients[number])
            self._flights.start(due + missing, will_wait)

    @outside_dynamo
    def _end_of_backward(self) -> None:
        self._callback_queued = False
        if self._wait_in_backward:
            self._agree(in_backward=True)
        else:
            self._begin(self._due(), b"", will_wait=False)


def _make_gradient(gradient: Gradient) -> None:
    parameter = gradient.parameter
    if parameter.grad is None:
        layout = torch.sparse_coo if gradient.was_sparse else torch.strided
        parameter.grad = torch.zeros_like(parameter, layout=layout, requires_grad=False)


def _notifier(reducer: weakref.ref[GradientReducer]) -> Callable[[], None]:
    @outside_dynamo
    def notify() -> None:
        watching = reducer()
        if watching is not None:
            watching.notified()

    return notify
