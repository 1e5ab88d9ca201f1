# SPDX-License-Identifier: Apache-2.0
"""Reductions of gradients that are under way: how one is handed to the engine, and how its result gets into place.

Dense gradients in host memory travel many to a call; those of groups, sparse ones and those of devices go other ways.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from horovod.common.dtypes import AS_IT_IS
from horovod.common.process_sets import ProcessSet
from horovod.common.wire import wire_of
from horovod.torch import mpi_ops
from horovod.torch.adapter import ID_BY_DTYPE
from horovod.torch.compression import Compressor, NoneCompressor, is_convertible
from horovod.torch.gradient_buckets import GradientBuckets
from horovod.torch.layout import in_memory_order, is_dense

Tensor = torch.Tensor
# A gradient, its tensor, what is sent for it, the compressor's context, the shape of what is sent in memory order.
Cargo = tuple["Gradient", Tensor, Tensor, Any, tuple[int, ...]]

_STRIDED, _FLOAT32 = torch.strided, torch.float32


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
        "number",
        "parameter",
        "passes_left",
        "reduced",
        "shape",
        "was_sparse",
    )

    def __init__(self, name: str, number: int, parameter: Tensor, passes: int) -> None:
        self.name = name
        self.full_name = f"allreduce.{name}"
        self.number = number
        self.parameter = parameter
        self.shape = tuple(parameter.shape)
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


class Flights:
    """What has been started and not yet been waited for."""

    def __init__(self, reduction: Reduction, buckets: GradientBuckets | None) -> None:
        self._reduction = reduction
        self._buckets = buckets
        self._wire = wire_of(reduction.compression)
        self._as_they_are = reduction.compression is NoneCompressor and buckets is None
        self._float32_as_it_is = self._wire != AS_IT_IS and buckets is None
        self._finishers: list[Callable[[], None]] = []  # each waits for operations and puts their results in place

    def __bool__(self) -> bool:
        return bool(self._finishers)

    def clear(self) -> None:
        self._finishers.clear()

    def start(self, gradients: Iterable[Gradient], will_wait: bool) -> None:
        """Begin to reduce gradients that are there; one of a group waits for the others.

        `will_wait`: the calling thread goes on to wait for them, so that nobody need be woken to drive them.
        """
        cargo: list[Cargo] = []
        as_they_are, float32_as_it_is = self._as_they_are, self._float32_as_it_is
        for gradient in gradients:
            gradient.in_flight = True
            grad: Any = gradient.parameter.grad
            if (
                (as_they_are or (float32_as_it_is and grad.dtype is _FLOAT32))
                and gradient.group is None
                and grad.layout is _STRIDED
                and grad.is_cpu
                and grad.is_contiguous()
            ):
                cargo.append((gradient, grad, grad, None, gradient.shape))
            else:
                self._start_unusual(gradient, grad, cargo)
        if cargo:
            self._submit(cargo, will_wait)

    def wait(self) -> None:
        """Wait for all of them, even if one fails. The first failure is raised."""
        finishers, self._finishers = self._finishers, []
        failure: Exception | None = None
        for finish in finishers:
            try:
                finish()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    # Ways to go

    def _start_unusual(self, gradient: Gradient, grad: Tensor, cargo: list[Cargo]) -> None:
        if grad.is_sparse:
            gradient.was_sparse = True
            if not self._reduction.sparse_as_dense:
                self._start_sparse(gradient, grad)
                return
            gradient.parameter.grad = grad.to_dense()
        if self._buckets is not None:
            self._buckets.adopt(gradient.parameter)
        assert gradient.parameter.grad is not None
        grad = gradient.parameter.grad  # which may be another one now
        if gradient.group is not None:
            gradient.group.ready.append(gradient)
            if len(gradient.group.ready) == len(gradient.group.gradients):
                self._start_group(gradient.group)
            return
        sent, context = self._compress(grad)
        if sent.is_cpu:
            cargo.append((gradient, grad, sent, context, tuple(in_memory_order(sent).shape)))
        else:
            self._start_elsewhere(gradient, grad, sent, context)

    def _submit(self, cargo: list[Cargo], will_wait: bool) -> None:
        how = self._reduction
        gradients, _, sents, _, shapes = zip(*cargo, strict=True)
        names = [gradient.full_name for gradient in gradients]
        addresses = [sent.data_ptr() for sent in sents]
        dtypes = [ID_BY_DTYPE[sent.dtype] for sent in sents]
        batch = mpi_ops.start_allreduces(
            names,
            addresses,
            shapes,
            dtypes,
            cargo,
            (how.op, how.prescale, how.postscale),
            how.process_set,
            will_wait,
            self._wire,
        )

        def finish() -> None:
            try:
                mpi_ops.finish_allreduces(batch)
            finally:
                for gradient, grad, sent, context, _ in cargo:
                    if sent is not grad:
                        self._put_in_place(grad, sent, context)
                    gradient.in_flight = False
                    gradient.reduced = weakref.ref(grad)

        self._finishers.append(finish)

    def _start_elsewhere(self, gradient: Gradient, grad: Tensor, sent: Tensor, context: Any) -> None:
        how = self._reduction
        handle = mpi_ops.allreduce_async_(
            in_memory_order(sent), None, gradient.name, how.op, how.prescale, how.postscale, how.process_set
        )

        def finish() -> None:
            mpi_ops.synchronize(handle)
            self._land(gradient, grad, sent, context)

        self._finishers.append(finish)

    def _start_group(self, group: Group) -> None:
        how = self._reduction
        grads = [gradient.parameter.grad for gradient in group.gradients]
        compressed = [self._compress(grad) for grad in grads if grad is not None]
        handle = mpi_ops.start_grouped_allreduce(
            [in_memory_order(sent) for sent, _ in compressed],
            group.name,
            (how.op, how.prescale, how.postscale),
            how.process_set,
            self._wire,
        )

        def finish() -> None:
            mpi_ops.synchronize(handle)
            group.ready.clear()
            for gradient, grad, (sent, context) in zip(group.gradients, grads, compressed, strict=True):
                assert grad is not None
                self._land(gradient, grad, sent, context)

        self._finishers.append(finish)

    def _start_sparse(self, gradient: Gradient, grad: Tensor) -> None:
        finish_sparse = mpi_ops.sparse_allreduce_async(
            grad, gradient.name, self._reduction.op, self._reduction.process_set
        )

        def finish() -> None:
            gradient.parameter.grad = finish_sparse()
            gradient.in_flight = False
            gradient.reduced = weakref.ref(gradient.parameter.grad)

        self._finishers.append(finish)

    # What is sent, and what comes back

    def _compress(self, grad: Tensor) -> tuple[Tensor, Any]:
        compression = self._reduction.compression
        as_it_is = compression is NoneCompressor or (self._wire != AS_IT_IS and is_convertible(grad))
        sent, context = (grad, None) if as_it_is else compression.compress(grad)
        return (sent, context) if is_dense(sent) else (sent.contiguous(), context)

    def _land(self, gradient: Gradient, grad: Tensor, sent: Tensor, context: Any) -> None:
        if sent is not grad:
            self._put_in_place(grad, sent, context)
        gradient.in_flight = False
        gradient.reduced = weakref.ref(grad)

    def _put_in_place(self, grad: Tensor, sent: Tensor, context: Any) -> None:
        received = self._reduction.compression.decompress(sent, context)
        with torch.no_grad():
            if self._buckets is None and received.dtype == grad.dtype:
                grad.set_(received)  # type: ignore[call-overload]
            else:
                grad.copy_(received)
