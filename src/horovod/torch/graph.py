# SPDX-License-Identifier: Apache-2.0
"""Support for torch.compile: which operations its graph can hold, and which must run outside of the graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from horovod.torch import autograd

P = ParamSpec("P")
R = TypeVar("R")

# Return True while the compiler traces. torch.compiler has this function since torch 2.3. The compiler treats either
# one as a constant.
is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling

# Return True only while the calling code itself is traced, in a third of the time. torch.compiler has this function
# since 2.3.
is_traced: Callable[[], bool] = getattr(torch.compiler, "is_dynamo_compiling", None) or is_compiling

# Custom operators with gradients need torch 2.4; before that, every operation leaves the graph.
HAS_OPERATORS = hasattr(torch.library, "register_autograd")

# Stack level, as warnings.warn() counts it, of the caller of a function that leaves or joins graphs.
CALLER_OF_LEFT = 4
CALLER_OF_JOINED = 3 if HAS_OPERATORS else CALLER_OF_LEFT


def blocking() -> Any:
    """Return the module of blocking operations: those that call the engine directly, or operators while compiling."""
    if HAS_OPERATORS and is_compiling():
        from horovod.torch import operators

        return operators
    return autograd


def outside_graph(function: Callable[P, R]) -> Callable[P, R]:
    """Break the graph before this function, so that the compiler does not try to trace into it."""
    return torch.compiler.disable(function)  # type: ignore[no-any-return, no-untyped-call]


def leaves_graph(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation that the compiler's graph cannot hold.

    A function for which half a microsecond matters checks is_compiling itself instead.
    """

    @functools.wraps(function)
    def outside(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_compiling():
            return outside_graph(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return outside


def joins_graph(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation that the graph can hold; without custom operators in this torch, it leaves the graph."""
    return function if HAS_OPERATORS else leaves_graph(function)
