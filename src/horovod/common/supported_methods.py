# SPDX-License-Identifier: Apache-2.0
"""Checks of a `compression` argument: which compression methods a function supports. No framework is needed."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from horovod.common.compression_methods import CompressionMethod
from horovod.common.rules import OP_NAMES, Average, Sum

Methods: TypeAlias = Sequence[type[CompressionMethod]]


def method_in(compression: Any, methods: Methods, function: str, op: int = Average) -> CompressionMethod | None:
    """Return the compression method if the function supports it; None for a Compressor. Raise an error otherwise.

    Args:
        compression: The user's argument.
        methods: The methods that the function supports.
        function: The function's name in the error.
        op: The reduction, which must be a sum or a mean.
    """
    if isinstance(compression, type) and issubclass(compression, CompressionMethod):
        raise TypeError(f"compression={compression.__name__} is a class: pass an instance, made by adding parentheses")
    if not isinstance(compression, CompressionMethod):
        return None
    text = compression.describe()
    if not isinstance(compression, tuple(methods)):
        others = [f"{method.name}()" for method in methods] + ["fp16", "none"]
        raise ValueError(
            f"{function} does not support compression={text}. Use hvd.Compression.{', '.join(others[:-1])} or "
            f"{others[-1]}"
        )
    if op not in (Average, Sum):
        name = OP_NAMES[op] if op in range(len(OP_NAMES)) else repr(op)
        raise ValueError(f"{function}: compression={text} supports op=hvd.Average and op=hvd.Sum only, not {name}")
    return compression


def check_exclude(method: CompressionMethod, names: Iterable[str]) -> None:
    """Raise ValueError if a pattern of `exclude=` matches no variable."""
    known = list(names)
    for pattern in method.exclude:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in known):
            raise ValueError(
                f"compression={method.describe()}: exclude={pattern!r} matches no name of a variable. The names are "
                f"{', '.join(known[:5])}{', …' if len(known) > 5 else ''}"
            )
