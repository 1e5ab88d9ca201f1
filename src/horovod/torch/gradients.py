# SPDX-License-Identifier: Apache-2.0
"""Gradients on their way from backward() to step(): hooks start each reduction as soon as autograd is done with it.

A round begins with the first backward pass after a step and ends with synchronize(). In it every parameter counts down
its passes; at zero its gradient is reduced, alone or with its group. Names, not order, match gradients across ranks.

Where backward() waits for its gradients, ranks whose graphs differ would wait for each other for ever. So they first
tell each other what they have begun, and give zeros to what only others have: one small allreduce per backward().
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from horovod.common.process_sets import ProcessSet
from horovod.torch import mpi_ops
from horovod.torch.adapter import TorchAdapter
from horovod.torch.compression import Compressor, NoneCompressor
from horovod.torch.dynamo import outside_dynamo
from horovod.torch.gradient_buckets import GradientBuckets
from horovod.torch.layout import in_memory_order, is_dense

Tensor = torch.Tensor
Cargo = tuple["Gradient", Tensor, Tensor, Any]  # a gradient, its tensor, what is sent for it, the compressor's context

_CARGO_BYTES = 256 * 1024
_CARGO_COUNT = 32

_TOO_MANY_PASSES = (
    "The gradient of {name} was computed again before optimizer.step(): more than backward_passes_per_step={passes} "
    "backward passes. Raise backward_passes_per_step to accumulate gradients over several passes, or call "
    "optimizer.step() or optimizer.zero_grad() between them."
)


@dataclass(frozen=True)
class Reduction:
    """How gradients are reduced; the same for all parameters of an optimizer."""

    op: int
    prescale: float
    postscale: float
    compression: type[Compressor]
    sparse_as_dense: bool
    process_set: ProcessSet


class Gradient:
    """One parameter's gradient. `passes_left` 0: its reduction has begun, and ended if it is not in flight."""

    __slots__ = (
        "full_name",
        "group",
        "hook",
        "in_flight",
        "name",
        "parameter",
        "passes_left",
        "reduced",
        "was_sparse",
    )

    def __init__(self, name: str, parameter: Tensor, passes: int) -> None:
        self.name = name
        self.full_name = f"allreduce.{name}"
        self.parameter = parameter
        self.passes_left = passes
        self.in_flight = False
        self.reduced: weakref.ref[Tensor] | None = None
        self.was_sparse = False
        self.group: Group | None = None
        self.hook: Any = None


class Group:
    """Gradients that are reduced as one unit, once all of them are there."""

    __slots__ = ("gradients", "name", "ready")

    def __init__(self, name: str, gradients: list[Gradient]) -> None:
        self.name = name
        self.gradients = gradients
        self.ready: list[Gradient] = []


class GradientReducer:
    """Watches the parameters of one optimizer and reduces their gradients."""

    def __init__(
        self,
        reduction: Reduction,
        named: Iterable[tuple[str, Tensor]],
        passes: int,
        wait_in_backward: bool,
        buckets: GradientBuckets | None,
    ) -> None:
        self._reduction = reduction
        self._passes = passes
        self._wait_in_backward = wait_in_backward
        self._buckets = buckets
        self._flights: list[Callable[[], None]] = []  # each waits for operations and puts their results in place
        self._cargo: list[Cargo] = []  # dense gradients that are there but not yet submitted
        self._cargo_bytes = 0
        self._callback_queued = False
        self._complete = False  # every gradient of this round is reduced, on all ranks
        self._lock = threading.Lock()  # with several devices autograd calls hooks from several threads
        self._gradients: dict[Tensor, Gradient] = {}
        for name, parameter in named:
            self.watch(name, parameter)

    # What is watched

    def watch(self, name: str, parameter: Tensor) -> None:
        """Reduce a parameter's gradients from now on; one that needs none yet is looked at again in each round."""
        self._gradients[parameter] = Gradient(name, parameter, self._passes)
        self._hook(self._gradients[parameter])

    def _hook(self, gradient: Gradient) -> None:
        if gradient.hook is None and gradient.parameter.requires_grad:
            # A weak reference: hooks of an optimizer that is gone must not reduce anything any more.
            fire = partial(_fire, weakref.ref(self), gradient)
            register: Any = gradient.parameter.register_post_accumulate_grad_hook
            gradient.hook = register(fire)

    def unwatch(self) -> None:
        """Remove all hooks."""
        for gradient in self._gradients.values():
            if gradient.hook is not None:
                gradient.hook.remove()
                gradient.hook = None

    def make_groups(self, groups: Sequence[Sequence[str]]) -> None:
        """Reduce the named parameters of each list as one unit."""
        by_name = {gradient.name: gradient for gradient in self._gradients.values()}
        for names in groups:
            group = Group(".".join((names[0], names[-1], str(len(names)))), [by_name[name] for name in names])
            for gradient in group.gradients:
                gradient.group = group

    # Rounds

    @property
    def busy(self) -> bool:
        """Whether reductions are under way."""
        return bool(self._flights or self._cargo)

    def set_passes(self, passes: int) -> None:
        self._passes = passes
        self.restart()

    def restart(self) -> None:
        """Forget the round: every parameter counts its passes anew."""
        self._flights.clear()
        self._cargo.clear()
        self._cargo_bytes = 0
        self._callback_queued = False
        self._complete = False
        for gradient in self._gradients.values():
            gradient.passes_left = self._passes
            gradient.in_flight = False
            gradient.reduced = None
            if gradient.group is not None:
                gradient.group.ready.clear()

    @outside_dynamo
    def forget_reduced(self) -> None:
        """Gradients were dropped or zeroed after they had been reduced: the next pass begins a new round for them."""
        self._callback_queued = False
        self._complete = False
        for gradient in self._gradients.values():
            if gradient.passes_left == 0:
                gradient.passes_left = self._passes

    @outside_dynamo
    def finish_round(self) -> None:
        """Reduce what no pass of this round has brought, too, and wait for everything.

        A parameter without a gradient contributes zeros: other ranks, with another graph, may have one for it.
        """
        try:
            if self._wait_in_backward and not self._complete:
                while self._agree(in_backward=False):
                    pass
            self._begin_missing(it for it in self._gradients.values() if it.parameter.requires_grad)
            self.wait()
        finally:
            self.restart()

    def _agree(self, in_backward: bool) -> bool:
        """Tell the others which reductions have begun here, join in those that have begun there, wait for all of them.

        True if some rank is at the end of a backward pass and may begin more, False if all have come to their step.
        """
        self._submit()
        gradients = list(self._gradients.values())
        begun = torch.tensor([*(it.passes_left == 0 for it in gradients), in_backward], dtype=torch.uint8)
        mpi_ops.allreduce_(
            begun, None, f"begun.{gradients[0].name}", mpi_ops.Max, process_set=self._reduction.process_set
        )
        *anywhere, elsewhere_in_backward = begun.tolist()
        self._begin_missing(it for it, there in zip(gradients, anywhere, strict=True) if there)
        self.wait()
        self._complete = all(anywhere)
        return bool(elsewhere_in_backward)

    def _begin_missing(self, gradients: Iterable[Gradient]) -> None:
        with self._lock:
            for gradient in gradients:
                if gradient.passes_left:
                    self._hook(gradient)
                    self._make_gradient(gradient)
                    self._begin(gradient)

    def wait(self) -> None:
        """Wait for every reduction that has begun: for all of them, even if one fails. The first failure is raised."""
        self._submit()
        flights, self._flights = self._flights, []
        failure: Exception | None = None
        for finish in flights:
            try:
                finish()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            self.restart()
            raise failure

    # Hooks

    def accumulated(self, gradient: Gradient) -> None:
        """Autograd has added a pass's gradient to a parameter."""
        with self._lock:
            if gradient.passes_left == 0:
                self._begin_again(gradient)
            gradient.passes_left -= 1
            if gradient.passes_left:
                return
            self._begin(gradient)
            if not self._callback_queued:
                self._callback_queued = True
                torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)

    def _begin_again(self, gradient: Gradient) -> None:
        # Allowed only if the reduced gradient was dropped since (model.zero_grad()), say by a gradient scaler that
        # skipped the step.
        if gradient.in_flight or (gradient.reduced is not None and gradient.reduced() is gradient.parameter.grad):
            raise AssertionError(_TOO_MANY_PASSES.format(name=gradient.name, passes=self._passes))
        gradient.passes_left = self._passes

    @outside_dynamo
    def _end_of_backward(self) -> None:
        self._callback_queued = False
        self._submit()
        if self._wait_in_backward:
            self._agree(in_backward=True)

    # Reductions

    def _make_gradient(self, gradient: Gradient) -> None:
        parameter = gradient.parameter
        if parameter.grad is None:
            layout = torch.sparse_coo if gradient.was_sparse else torch.strided
            parameter.grad = torch.zeros_like(parameter, layout=layout, requires_grad=False)

    def _begin(self, gradient: Gradient) -> None:
        gradient.passes_left = 0
        gradient.in_flight = True
        grad = gradient.parameter.grad
        assert grad is not None
        if grad.is_sparse:
            gradient.was_sparse = True
            if not self._reduction.sparse_as_dense:
                self._begin_sparse(gradient, grad)
                return
            gradient.parameter.grad = grad.to_dense()
        if self._buckets is not None:
            self._buckets.adopt(gradient.parameter)
        if gradient.group is None:
            self._begin_dense(gradient)
            return
        gradient.group.ready.append(gradient)
        if len(gradient.group.ready) == len(gradient.group.gradients):
            self._begin_group(gradient.group)

    def _begin_dense(self, gradient: Gradient) -> None:
        grad = gradient.parameter.grad
        assert grad is not None
        sent, context = self._compress(grad)
        if not sent.is_cpu:
            self._begin_elsewhere(gradient, grad, sent, context)
            return
        self._cargo.append((gradient, grad, sent, context))
        self._cargo_bytes += sent.nbytes
        # Small gradients travel together: a call and a wake-up for each would cost more than their reduction.
        if self._cargo_bytes >= _CARGO_BYTES or len(self._cargo) >= _CARGO_COUNT:
            self._submit()

    def _submit(self) -> None:
        """Hand over the gradients that have gathered."""
        if not self._cargo:
            return
        cargo, self._cargo, self._cargo_bytes = self._cargo, [], 0
        how = self._reduction
        names = [gradient.full_name for gradient, _, _, _ in cargo]
        described = [TorchAdapter.target(in_memory_order(sent)) for _, _, sent, _ in cargo]
        batch = mpi_ops.start_allreduces(
            names, described, cargo, (how.op, how.prescale, how.postscale), how.process_set
        )

        def finish() -> None:
            try:
                mpi_ops.finish_allreduces(batch)
            finally:
                for gradient, grad, sent, context in cargo:
                    self._land(gradient, grad, sent, context)

        self._flights.append(finish)

    def _begin_elsewhere(self, gradient: Gradient, grad: Tensor, sent: Tensor, context: Any) -> None:
        how = self._reduction
        handle = mpi_ops.allreduce_async_(
            in_memory_order(sent), None, gradient.name, how.op, how.prescale, how.postscale, how.process_set
        )

        def finish() -> None:
            mpi_ops.synchronize(handle)
            self._land(gradient, grad, sent, context)

        self._flights.append(finish)

    def _begin_group(self, group: Group) -> None:
        how = self._reduction
        grads = [gradient.parameter.grad for gradient in group.gradients]
        compressed = [self._compress(grad) for grad in grads if grad is not None]
        handle = mpi_ops.grouped_allreduce_async_(
            [in_memory_order(sent) for sent, _ in compressed],
            None,
            group.name,
            how.op,
            how.prescale,
            how.postscale,
            how.process_set,
        )

        def finish() -> None:
            mpi_ops.synchronize(handle)
            group.ready.clear()
            for gradient, grad, (sent, context) in zip(group.gradients, grads, compressed, strict=True):
                assert grad is not None
                self._land(gradient, grad, sent, context)

        self._flights.append(finish)

    def _begin_sparse(self, gradient: Gradient, grad: Tensor) -> None:
        finish_sparse = mpi_ops.sparse_allreduce_async(
            grad, gradient.name, self._reduction.op, self._reduction.process_set
        )

        def finish() -> None:
            gradient.parameter.grad = finish_sparse()
            gradient.in_flight = False
            gradient.reduced = weakref.ref(gradient.parameter.grad)

        self._flights.append(finish)

    def _compress(self, grad: Tensor) -> tuple[Tensor, Any]:
        if self._reduction.compression is NoneCompressor and grad.is_contiguous():
            return grad, None
        sent, context = self._reduction.compression.compress(grad)
        return (sent, context) if is_dense(sent) else (sent.contiguous(), context)

    def _land(self, gradient: Gradient, grad: Tensor, sent: Tensor, context: Any) -> None:
        if sent is not grad:
            received = self._reduction.compression.decompress(sent, context)
            with torch.no_grad():
                if self._buckets is None and received.dtype == grad.dtype:
                    grad.set_(received)  # type: ignore[call-overload]
                else:
                    grad.copy_(received)
        gradient.in_flight = False
        gradient.reduced = weakref.ref(grad)


@outside_dynamo
def _fire(reducer: weakref.ref[GradientReducer], gradient: Gradient, parameter: Tensor) -> None:
    watching = reducer()
    if watching is not None:
        watching.accumulated(gradient)
