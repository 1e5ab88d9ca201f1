# SPDX-License-Identifier: Apache-2.0
"""Where torch.compile meets the operations: which of them its graph can hold, and which must run outside of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from horovod.torch import autograd

P = ParamSpec("P")
R = TypeVar("R")

# torch.compiler has it since 2.3; the compiler takes both for constants.
is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling

# Only while the very code that asks is looked at, at a third of the time; torch.compiler has it since 2.3, too.
is_traced: Callable[[], bool] = getattr(torch.compiler, "is_dynamo_compiling", None) or is_compiling

# Custom operators with gradients need 2.4; before that, every operation leaves the graph.
HAS_OPERATORS = hasattr(torch.library, "register_autograd")

# The stack level, as warnings count it, of whoever calls a function that joins or leaves graphs.
CALLER_OF_LEFT = 4
CALLER_OF_JOINED = 3 if HAS_OPERATORS else CALLER_OF_LEFT


def blocking() -> Any:
    """The module of blocking operations: on the engine directly, or as operators that a graph under way can hold."""
    if HAS_OPERATORS and is_compiling():
        from horovod.torch import operators

        return operators
    return autograd


def outside_graph(function: Callable[P, R]) -> Callable[P, R]:
    """For compiled code: a function as it is, after a clean break, instead of the compiler's tries to look inside."""
    return torch.compiler.disable(function)  # type: ignore[no-any-return, no-untyped-call]


def leaves_graph(function: Callable[P, R]) -> Callable[P, R]:
    """For what the compiler cannot hold; where half a microsecond counts, a function asks is_compiling itself."""

    @functools.wraps(function)
    def outside(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_compiling():
            return outside_graph(function)(*args, **kwargs)
        return function(*args, **kwargs)

    return outside


def joins_graph(function: Callable[P, R]) -> Callable[P, R]:
    """For what the compiler can hold, if this torch has what that takes."""
    return function if HAS_OPERATORS else leaves_graph(function)
