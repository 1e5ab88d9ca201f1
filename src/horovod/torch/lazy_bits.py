# SPDX-License-Identifier: Apache-2.0
"""Support for tensors whose negation or conjugation torch has only recorded in a bit, without changing their memory.

The imaginary part of a conjugate has the negative bit, for example. The engine reads and writes memory, so it works on
copies of such tensors without these bits. Results in place are then copied back to the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from horovod.common.calls import Call
from horovod.common.handles import Pending
from horovod.common.ops import Collectives

Tensor = torch.Tensor


def resolve(tensor: Tensor) -> Tensor:
    """Return the tensor itself, or a detached copy without the bits if it has one."""
    if tensor.is_neg() or tensor.is_conj():
        return tensor.detach().resolve_conj().resolve_neg()
    return tensor


def write_back(copies: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy the values of copies back to the tensors that they were made of."""
    for copy, tensor in zip(copies, tensors, strict=True):
        if copy is not tensor:
            tensor.detach().copy_(copy)


class TensorCollectives(Collectives[Tensor]):
    """Collectives on tensors with or without the negative bit; the engine does not support complex tensors."""

    def start(self, call: Call, tensors: Sequence[Tensor], will_wait: bool) -> Pending:
        if not any(map(Tensor.is_neg, tensors)):
            return self.start_on_memory(call, tensors, will_wait)
        copies = [resolve(tensor) for tensor in tensors]
        pending = self.start_on_memory(call, copies, will_wait)
        return _written_back(pending, copies, tensors, call.grouped) if call.in_place else pending

    def start_on_memory(self, call: Call, tensors: Sequence[Tensor], will_wait: bool) -> Pending:
        """Begin a collective on tensors whose memory holds their values."""
        return super().start(call, tensors, will_wait)

    def send(self, tensor: Tensor, peer: int, tag: int) -> Pending:
        return super().send(resolve(tensor), peer, tag)

    def recv(self, tensor: Tensor, peer: int, tag: int) -> Pending:
        copy = resolve(tensor)
        pending = super().recv(copy, peer, tag)
        return pending if copy is tensor else _written_back(pending, [copy], [tensor], grouped=False)


@dataclass(frozen=True)
class _WriteBack:
    """Last step of an operation in place, which copies the values back into the tensors and returns these."""

    collect: Callable[[Pending], Any] | None
    copies: Sequence[Tensor]
    tensors: Sequence[Tensor]
    grouped: bool

    def __call__(self, done: Pending) -> Any:
        if self.collect is not None:
            self.collect(done)
        write_back(self.copies, self.tensors)
        return tuple(self.tensors) if self.grouped else self.tensors[0]


def _written_back(pending: Pending, copies: Sequence[Tensor], tensors: Sequence[Tensor], grouped: bool) -> Pending:
    pending.collect = _WriteBack(pending.collect, copies, tensors, grouped)
    return pending
