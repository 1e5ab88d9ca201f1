# SPDX-License-Identifier: Apache-2.0
"""Translation of errors of collectives inside jit, which XLA raises as its own errors with Horovod's text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import jax

from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError, HorovodNotInitializedError
from horovod.jax import handlers

# XLA's name of the handler's error code, then the handler's text; see CodeOf in engine/bindings/xla/handler.cc.
_FORM = re.compile(r"\b([A-Z_]+): (?:.*?)\bHorovod: (.*)", re.DOTALL)


def translate(error: Exception) -> Exception | None:
    """Return the error that is raised outside jit for this failure, or None if the error is not Horovod's."""
    found = _FORM.search(str(error))
    if found is None:
        return None
    code, text = found.groups()
    if code == "INVALID_ARGUMENT":
        return ValueError(text)
    if code == "UNIMPLEMENTED":
        return NotImplementedError(text)
    if code == "FAILED_PRECONDITION":
        return HorovodMismatchError(text)
    if code == "UNAVAILABLE":
        return HorovodNotInitializedError(text)
    loaded = handlers.load()
    return HorovodInternalError(text, lost_rank=loaded.lost_rank() if loaded else None)


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Inside the block, a collective that fails inside jit raises what it raises outside: HorovodInternalError, …

    Depending on its version and on the call, JAX itself raises JaxRuntimeError or ValueError for it.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        translated = translate(error)
        if translated is None:
            raise
        raise translated from error
