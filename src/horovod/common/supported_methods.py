# SPDX-License-Identifier: Apache-2.0
"""Checks of a `compression` argument: which compression methods a function supports. No framework is needed."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from horovod.common.compression_methods import CompressionMethod
from horovod.common.rules import OP_NAMES, Average, Sum

Methods: TypeAlias = Sequence[type[CompressionMethod]]


def given_method(compression: Any) -> CompressionMethod | None:
    """Return the compression if it is a method, None for a Compressor. TypeError for the class of a method."""
    if isinstance(compression, type) and issubclass(compression, CompressionMethod):
        raise TypeError(f"compression={compression.__name__} is a class: pass an instance, made by adding parentheses")
    return compression if isinstance(compression, CompressionMethod) else None


def method_in(compression: Any, methods: Methods, function: str, op: int = Average) -> CompressionMethod | None:
    """Return the compression method if the function supports it; None for a Compressor. Raise an error otherwise.

    Args:
        compression: The user's argument.
        methods: The methods that the function supports.
        function: The function's name in the error.
        op: The reduction, which must be a sum or a mean.
    """
    found = given_method(compression)
    if found is None:
        return None
    text = found.describe()
    if not isinstance(found, tuple(methods)):
        others = [f"{method.name}()" for method in methods] + ["fp16", "none"]
        raise ValueError(
            f"{function} does not support compression={text}. Use hvd.Compression.{', '.join(others[:-1])} or "
            f"{others[-1]}"
        )
    if op not in (Average, Sum):
        name = OP_NAMES[op] if op in range(len(OP_NAMES)) else repr(op)
        raise ValueError(f"{function}: compression={text} supports op=hvd.Average and op=hvd.Sum only, not {name}")
    return found


def check_exclude(method: CompressionMethod, names: Iterable[str]) -> None:
    """Raise ValueError if a pattern of `exclude=` matches no variable."""
    known = list(names)
    for problem in unmatched(method, known, "variable"):
        raise ValueError(f"{problem}. The names are {first_of(known)}")


def unmatched(method: CompressionMethod, names: Collection[str], kind: str) -> Iterator[str]:
    """Yield a text for each pattern of `exclude=` that matches none of these names of a `kind`, such as "variable"."""
    for pattern in method.exclude:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            yield f"compression={method.describe()}: exclude={pattern!r} matches no name of a {kind}"


def first_of(names: Sequence[str]) -> str:
    """Return the first few names, for a message."""
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
