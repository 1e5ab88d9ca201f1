# SPDX-License-Identifier: Apache-2.0
"""Reductions of gradients that are in flight: how a gradient is submitted, and how its result is put in place.

One call submits many dense gradients in host memory. Groups, sparse gradients and gradients on devices go other ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from horovod._engine import GradientHomes, moved_text, replaced_text
from horovod.common.context import default_context
from horovod.common.dtypes import AS_IT_IS
from horovod.common.rules import Adasum
from horovod.torch import direct
from horovod.torch.adapter import ID_BY_DTYPE
from horovod.torch.compression import NoneCompressor, is_convertible
from horovod.torch.gradients.buckets import GradientBuckets
from horovod.torch.gradients.conversations import in_spite_of_failures
from horovod.torch.gradients.forms import put_in_form
from horovod.torch.gradients.gradient import Gradient, Gradients, Group, Reduction
from horovod.torch.gradients.known_optimizers import KnownOptimizer
from horovod.torch.gradients.writes import Writes, refuse
from horovod.torch.hooks.attached import AttachedHook
from horovod.torch.hooks.bucket import CommHook
from horovod.torch.hooks.flat import FlatBucket
from horovod.torch.in_flight import watch
from horovod.torch.layout import in_memory_order, is_dense
from horovod.torch.lazy_bits import resolve
from horovod.torch.sparse import sparse_allreduce

Tensor = torch.Tensor
# A gradient, its tensor, the tensor that is sent, the compressor's context, the sent tensor's shape in memory order.
Cargo = tuple[Gradient, Tensor, Tensor, Any, tuple[int, ...]]


class Flights:
    """Reductions of one optimizer that have been started and not yet been waited for."""

    def __init__(
        self,
        reduction: Reduction,
        gradients: Gradients,
        buckets: GradientBuckets | None,
        homes: GradientHomes | None,
        optimizer: KnownOptimizer,
    ) -> None:
        self._reduction = reduction
        self._optimizer = optimizer
        self._buckets = buckets
        self._homes = homes
        self._call = reduction.call
        self._gradients = gradients
        self._table = gradients.table
        self._writes = Writes()
        self._watches_writes = False
        self._finishers: list[Callable[[], None]] = []  # each waits for operations and puts their results in place
        self.comm_hook = AttachedHook(optimizer, gradients, reduction)

    def __bool__(self) -> bool:
        return bool(self._finishers)

    def attach(self, hook: CommHook, limit_bytes: int) -> None:
        """Reduce gradients by a communication hook from now on, in the memory that autograd allocates for them."""
        self.comm_hook.attach(hook, limit_bytes)
        if not self.comm_hook.leaves_gradients:
            self._homes = None

    def clear(self) -> None:
        self._finishers.clear()
        self.comm_hook.clear()
        self._writes.clear()
        for group in self._gradients.groups:
            group.waiting.clear()

    def make_bundle(self, numbers: Sequence[int]) -> int:
        """Propose to bundle the small ones of these gradients. Return a key of the bundle, or 0 if there is none.

        The key is equal on all ranks that propose an equal bundle.
        """
        if not self._gradients.bundles:
            return 0
        if self._buckets is not None:
            self._buckets.put_places_into(self._table)
        return self._table.make_bundle(numbers)

    def start(
        self, numbers: Sequence[int], will_wait: bool, are_last: bool, bundled: bool, watches_writes: bool = False
    ) -> None:
        """Begin to reduce gradients that are due.

        A gradient of a group waits until the whole group is due, or until no more gradients follow (`are_last`). It
        does not wait if the hook leaves gradients to the engine, because other ranks may have no such bucket.
        `will_wait` means that the calling thread waits for the results next, so that no thread has to be woken to drive
        the reductions. `bundled` means that all ranks send the bundle that the table has made. `watches_writes` means
        that the program runs on while gradients are reduced.
        """
        self._watches_writes = watches_writes
        if numbers:
            self._start(numbers, will_wait, bundled)
        for group in self._gradients.groups:
            is_due = are_last or len(group.waiting) == len(group.gradients)
            if group.waiting and (is_due or (group.bucket and self.comm_hook.leaves_gradients)):
                self._start_bucket(group, group.bucket) if group.bucket else self._start_group(group)

    def _start(self, numbers: Sequence[int], will_wait: bool, bundled: bool) -> None:
        if self._buckets is not None:
            self._buckets.put_places_into(self._table)
        if self._homes is not None:
            self._homes.move_to(default_context.world)
        others = self._start_plain(numbers, will_wait, bundled)
        if others and self._buckets is not None and self._adopt(others, self._buckets):
            others = self._start_plain(others, will_wait, False)
        cargoes: dict[torch.device, list[Cargo]] = {}
        for number in others:
            self._start_unusual(self._gradients[number], cargoes)
        for device, cargo in cargoes.items():
            self._submit(cargo, device, will_wait)

    def wait(self) -> None:
        """Wait for all reductions, even if one fails, then raise the first failure."""
        finishers, self._finishers = self._finishers, []
        changed = self._writes.changed()  # first, because copying results counts as a write
        in_spite_of_failures([*finishers, partial(refuse, changed)])

    def _watch(self, gradients: Iterable[Gradient], grads: Iterable[Any]) -> None:
        if self._watches_writes:
            self._writes.watch((it.full_name, grad) for it, grad in zip(gradients, grads, strict=True))

    # Submission paths

    def _start_plain(self, numbers: Sequence[int], will_wait: bool, bundled: bool) -> list[int]:
        """Submit gradients that need no preparation in one native call. Return the numbers of the others."""
        bundle = self._optimizer.bundle_name if bundled else None
        sent: list[int] = []
        grads: list[Tensor] = []
        batch, others = direct.host.start_batch(
            lambda member: self._table.start(numbers, member, will_wait, sent, grads, bundle),
            grads,
            self._call.process_set,
        )
        if not sent:
            return others
        self._watch(map(self._gradients.__getitem__, sent), grads)

        def finish() -> None:
            try:
                direct.finish_batch(batch)
                if bundled:
                    self._table.unpack()
            finally:
                self._table.land(sent, grads)

        self._finishers.append(finish)
        return others

    def _adopt(self, numbers: Sequence[int], buckets: GradientBuckets) -> bool:
        """Move these gradients into their bucket views. Return True if any on the host was elsewhere."""
        return buckets.adopt([self._gradients[number].parameter for number in numbers])

    def _start_unusual(self, gradient: Gradient, cargoes: dict[torch.device, list[Cargo]]) -> None:
        gathers_rows = gradient.sparse and not self._reduction.sparse_as_dense
        if gathers_rows and self.comm_hook.hook is not None:
            return  # all ranks raise an error for it in their next exchange
        converted = put_in_form(gradient.parameter, gathers_rows)
        if gathers_rows:
            self._start_sparse(gradient)
            return
        if converted and self._buckets is not None:
            self._buckets.adopt([gradient.parameter])
        if gradient.group is not None:
            gradient.group.waiting.add(gradient)
            return
        grad: Any = gradient.parameter.grad
        sent, context = self._compress(grad)
        if sent.is_cpu or (sent.is_cuda and self._call.op != Adasum):
            shape = tuple(in_memory_order(sent).shape)
            cargoes.setdefault(sent.device, []).append((gradient, grad, sent, context, shape))
        else:
            self._start_elsewhere(gradient, grad, sent, context)

    def _submit(self, cargo: list[Cargo], device: torch.device, will_wait: bool) -> None:
        gradients, grads, sents, _, shapes = zip(*cargo, strict=True)
        names = [gradient.full_name for gradient in gradients]
        described = [
            (sent.data_ptr(), shape, _dtype_id(gradient, sent))
            for gradient, sent, shape in zip(gradients, sents, shapes, strict=True)
        ]
        if device.type == "cpu":
            batch = direct.host.start_allreduces(self._call, names, described, cargo, will_wait)
        else:
            call = replace(self._call, wire=AS_IT_IS)
            with torch.cuda.device(device):
                batch = direct.on_gpu().start_allreduces(call, names, described, cargo, will_wait)
        watched = {} if will_wait else {name: watch([sent]) for name, sent in zip(names, sents, strict=True)}
        self._watch(gradients, grads)

        def finish() -> None:
            try:
                direct.finish_batch(batch)
                for name, lies_still in watched.items():
                    if not lies_still():
                        raise ValueError(moved_text(name))
            finally:
                for gradient, grad, sent, context, _ in cargo:
                    self._land(gradient, grad, sent, context)

        self._finishers.append(finish)

    def _start_elsewhere(self, gradient: Gradient, grad: Tensor, sent: Tensor, context: Any) -> None:
        handle = direct.begin(replace(self._call, name=gradient.wire_name, wire=AS_IT_IS), [in_memory_order(sent)])
        self._watch([gradient], [grad])

        def finish() -> None:
            direct.synchronize(handle)
            self._land(gradient, grad, sent, context)

        self._finishers.append(finish)

    def _start_group(self, group: Group) -> None:
        # Leave out parameters that have been frozen since the group was made. All ranks have agreed on which ones.
        gradients = [gradient for gradient in group.gradients if gradient in group.waiting]
        group.waiting.clear()
        grads: list[Any] = [gradient.parameter.grad for gradient in gradients]
        compressed = [self._compress(grad) for grad in grads]
        call = replace(self._call, name=group.wire_name, grouped=True)
        handle = direct.begin(call, [in_memory_order(sent) for sent, _ in compressed])
        self._watch(gradients, grads)

        def finish() -> None:
            direct.synchronize(handle)
            for gradient, grad, (sent, context) in zip(gradients, grads, compressed, strict=True):
                self._land(gradient, grad, sent, context)

        self._finishers.append(finish)

    def _start_bucket(self, group: Group, flat: FlatBucket) -> None:
        gradients = [gradient for gradient in group.gradients if gradient in group.waiting]
        group.waiting.clear()
        if self.comm_hook.leaves_gradients:
            self._start_one_by_one(gradients)
            return
        grads: list[Any] = [gradient.parameter.grad for gradient in gradients]
        self._watch(gradients, grads)
        put_in_place = self.comm_hook.start(flat, gradients)

        def finish() -> None:
            put_in_place(grads)
            for gradient, grad in zip(gradients, grads, strict=True):
                self._land(gradient, grad, grad, None)

        self._finishers.append(finish)

    def _start_one_by_one(self, gradients: list[Gradient]) -> None:
        """Reduce a bucket's gradients in place, as without a hook. The waiting gradients are equal on all ranks."""
        cargo: list[Cargo] = []
        for gradient in gradients:
            grad: Any = gradient.parameter.grad
            sent, context = self._compress(grad)
            if sent.is_cpu or sent.is_cuda:
                cargo.append((gradient, grad, sent, context, tuple(in_memory_order(sent).shape)))
            else:
                self._start_elsewhere(gradient, grad, sent, context)
        if cargo:
            self._submit(cargo, cargo[0][2].device, will_wait=False)

    def _start_sparse(self, gradient: Gradient) -> None:
        grad: Any = gradient.parameter.grad
        # All ranks have compared the shapes of their parameters, so there is no need to compare them again.
        finish_sparse = sparse_allreduce(
            grad, gradient.wire_name, self._call.op, self._call.process_set, compares_shapes=False
        )
        self._watch([gradient], [grad])

        def finish() -> None:
            reduced = finish_sparse()
            self._check_place(gradient, grad)
            gradient.parameter.grad = reduced
            self._table.land([gradient.number], [reduced])

        self._finishers.append(finish)

    # Compression, and results

    def _compress(self, grad: Tensor) -> tuple[Tensor, Any]:
        compression = self._reduction.compression
        as_it_is = compression is NoneCompressor or (self._call.wire != AS_IT_IS and is_convertible(grad))
        sent, context = (grad, None) if as_it_is else compression.compress(grad)
        sent = resolve(sent)
        return (sent, context) if is_dense(sent) else (sent.contiguous(), context)

    def _land(self, gradient: Gradient, grad: Tensor, sent: Tensor, context: Any) -> None:
        if sent is not grad:
            self._put_in_place(grad, sent, context)
        self._check_place(gradient, grad)
        if gradient.sparse:  # it was made dense only for the reduction
            put_in_form(gradient.parameter, sparse=True)
        self._table.land([gradient.number], [gradient.parameter.grad if gradient.sparse else grad])

    def _check_place(self, gradient: Gradient, reduced: Tensor) -> None:
        """Raise ValueError if the program has given the parameter another gradient while this one was reduced."""
        grad = gradient.parameter.grad
        if grad is not None and grad is not reduced:
            self._table.land([gradient.number], [reduced])
            raise ValueError(replaced_text(gradient.full_name))

    def _put_in_place(self, grad: Tensor, sent: Tensor, context: Any) -> None:
        received = self._reduction.compression.decompress(sent, context)
        with torch.no_grad():
            if self._buckets is None and received.dtype == grad.dtype and not grad.is_neg():
                grad.set_(received)  # type: ignore[call-overload]
            else:
                grad.copy_(received)


def _dtype_id(gradient: Gradient, sent: Tensor) -> int:
    """Return the engine's dtype id of what is sent; an error about an unsupported dtype names the parameter."""
    try:
        return ID_BY_DTYPE[sent.dtype]
    except ValueError as error:
        remedy = ""
        if sent.is_complex():
            remedy = ". Make the parameter real and use torch.view_as_complex(parameter) in forward()"
        raise ValueError(f"The gradient of {gradient.name!r} cannot be reduced: {error}{remedy}") from None
