# SPDX-License-Identifier: Apache-2.0
"""Tensors of operations in flight: keep their memory alive, and detect tensors that have lost it.

Native code does this for simple tensors (bindings/python/plain_operation, gradient_table); this module does it for all
others. A storage that is referenced here keeps its memory even if its tensor gets another storage. If the program
resizes the storage itself, torch frees the memory in spite of references, which can only be detected afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from horovod.common.context import default_context
from horovod.common.handles import Pending


def watch(tensors: Iterable[Any]) -> Callable[[], bool]:
    """Keep the memory of host tensors.

    Return a function that returns False once a tensor has lost its memory or changed its number of elements.
    """
    held = [
        (tensor, tensor.untyped_storage(), tensor.data_ptr(), tensor.numel())
        for tensor in tensors
        if isinstance(tensor, torch.Tensor) and tensor.is_cpu and tensor.layout is torch.strided
    ]
    return lambda: all(tensor.data_ptr() == address and tensor.numel() == count for tensor, _, address, count in held)


def add(pending: Pending) -> int:
    """Return a handle for an operation whose tensors the caller may use while it is in flight."""
    keep = pending.keep
    pending.lies_still = watch(keep if isinstance(keep, tuple) else (keep,))
    return default_context.handles.add(pending)
