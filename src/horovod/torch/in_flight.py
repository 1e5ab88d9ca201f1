# SPDX-License-Identifier: Apache-2.0
"""Tensors of operations under way: what keeps their memory, and whether they still have it at the end.

Plain tensors are looked after natively (bindings/python/plain_operation, gradient_table); this is for all others. A
storage that is held keeps its memory when its tensor gets another one. When the storage itself is resized torch frees
the memory whoever holds it: that can only be noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from horovod.common.context import default_context
from horovod.common.handles import Pending


def watch(tensors: Iterable[Any]) -> Callable[[], bool]:
    """Hold the memory of host tensors; whether all of them have it still, with as many elements."""
    held = [
        (tensor, tensor.untyped_storage(), tensor.data_ptr(), tensor.numel())
        for tensor in tensors
        if isinstance(tensor, torch.Tensor) and tensor.is_cpu and tensor.layout is torch.strided
    ]
    return lambda: all(tensor.data_ptr() == address and tensor.numel() == count for tensor, _, address, count in held)


def add(pending: Pending) -> int:
    """A handle for an operation whose tensors its caller may use meanwhile."""
    keep = pending.keep
    pending.lies_still = watch(keep if isinstance(keep, tuple) else (keep,))
    return default_context.handles.add(pending)
