# SPDX-License-Identifier: Apache-2.0
"""Decorator that keeps torch.compile out of code that calls the engine, at no cost to programs that do not compile.

torch.compiler.disable would import the compiler, which takes seconds, and would add microseconds to every call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from horovod.torch.graph import is_compiling

Function = TypeVar("Function", bound=Callable[..., Any])


def _find_tracing() -> Callable[[], Any]:
    from torch._C._dynamo import eval_frame

    # Torch 2.1 lacks this function. There every call counts as traced once the compiler is loaded.
    return getattr(eval_frame, "get_eval_frame_callback", lambda: sys.modules.get("torch._dynamo"))


_tracing = _find_tracing()


def outside_dynamo(function: Function) -> Function:
    """Run a function as it is, even if compiled code calls it."""
    disabled: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        nonlocal disabled
        # While this frame itself is traced, is_compiling() is True, so that _tracing() is not called.
        if not is_compiling() and _tracing() is None:
            return function(*arguments)
        if disabled is None:
            disabled = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return disabled(*arguments)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]  # seen by dynamo before it would trace into it
    return call  # type: ignore[return-value]
