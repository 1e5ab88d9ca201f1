# SPDX-License-Identifier: Apache-2.0
"""Compression by the engine: it converts float32 while it stages the values, which costs almost nothing.

To other ranks, such a tensor has the smaller type. In a world on one host that would save nothing, so the engine keeps
float32 there, unless results must not depend on the placement of ranks (HOROVOD_DETERMINISTIC).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from horovod.common.dtypes import AS_IT_IS, ID_BY_NAME

C = TypeVar("C", bound=type)

_types: dict[type, int] = {}


def travels_as(name: str) -> Callable[[C], C]:
    """Mark a compressor that only rounds floating-point tensors to a type, so that the engine can do it instead."""

    def mark(compressor: C) -> C:
        _types[compressor] = ID_BY_NAME[name]
        return compressor

    return mark


def wire_of(compression: Any) -> int:
    """Return the id of the type in which the engine sends float32 for this compressor.

    Return AS_IT_IS for a user's compressor, even one derived from ours, because it compresses by its own code.
    """
    return _types.get(compression, AS_IT_IS) if isinstance(compression, type) else AS_IT_IS
