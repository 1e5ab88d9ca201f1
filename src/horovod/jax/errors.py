# SPDX-License-Identifier: Apache-2.0
"""Translation of errors of collectives inside jit, which XLA raises as its own errors with Horovod's text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import jax

from horovod.common.exceptions import HorovodInternalError, HorovodMismatchError, HorovodNotInitializedError
from horovod.jax import handlers

# Matches XLA's name of the handler's error code, followed by the handler's text; see CodeOf in
# engine/bindings/xla/handler.cc.
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
    """Return a context in which collectives inside jit raise the errors that they raise outside.

    JAX itself raises JaxRuntimeError or ValueError for them, depending on its version and on the call.

    Returns:
        A context manager.

    Raises:
        HorovodInternalError: Inside the block, as a rank failed or left the job.
        HorovodMismatchError: Inside the block, as the ranks disagree.

    Example:
        >>> with hvd.translated_errors():
        ...     jax.jit(hvd.allreduce)(jnp.ones(2)).block_until_ready()
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        translated = translate(error)
        if translated is None:
            raise
        raise translated from error
