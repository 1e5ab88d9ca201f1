# SPDX-License-Identifier: Apache-2.0
"""Compression that the engine does by itself: float32 is converted while it is staged, which costs next to nothing.

To ranks on other hosts such a tensor is one of the smaller type. A world on one host has nothing to save: there the
engine leaves float32 as it is, unless results must not depend on how ranks lie on hosts (HOROVOD_DETERMINISTIC).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from horovod.common.dtypes import AS_IT_IS, ID_BY_NAME

C = TypeVar("C", bound=type)

_types: dict[type, int] = {}


def travels_as(name: str) -> Callable[[C], C]:
    """Marks a compressor that rounds floating-point tensors to a type, and does nothing else."""

    def mark(compressor: C) -> C:
        _types[compressor] = ID_BY_NAME[name]
        return compressor

    return mark


def wire_of(compression: Any) -> int:
    """The type that the engine is to carry float32 as. A user's compressor, even one made from ours, does its own."""
    return _types.get(compression, AS_IT_IS) if isinstance(compression, type) else AS_IT_IS
