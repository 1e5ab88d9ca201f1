# SPDX-License-Identifier: Apache-2.0
"""XLA handlers (libhvd_xla), registered with JAX.

If XLA does not accept a handler's version, it refuses the whole CPU backend. So the handlers are tried in another
process first if the version of JAX is newer than all tested ones.
"""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
from typing import Any

import jax

from horovod.common import xla_library
from horovod.common.settings import value_of

OLDEST = (0, 4, 38)
NEWEST_TRIED = (0, 11)
_PROBE_LIMIT_S = 60
_SWITCH = "HOROVOD_JAX_FFI"


def version() -> tuple[int, ...]:
    return tuple(int(part) for part in jax.__version__.split(".")[:3] if part.isdigit())


def unavailable() -> str | None:
    """Return why compiled programs cannot call the engine directly but only through Python; None if they can."""
    switch = value_of(_SWITCH, os.environ)
    if switch is False:
        return f"{_SWITCH}={os.environ[_SWITCH]} is set"
    if not xla_library.PATH.exists():
        return f"{xla_library.PATH} is missing from this installation"
    if version() < OLDEST:
        return f"jax {jax.__version__} is older than {'.'.join(map(str, OLDEST))}"
    if not switch and version()[:2] > NEWEST_TRIED and not _probe():
        return f"jax {jax.__version__} is newer than this version of Horovod knows, and refused its handlers"
    return None


@functools.cache
def _probe() -> bool:
    program = (
        "import horovod.jax as hvd, jax, jax.numpy as jnp; hvd.init();"
        "assert jax.jit(hvd.allreduce)(jnp.ones(3)).sum() == 3"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "OMPI_"))}
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, _SWITCH: "1", "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            timeout=_PROBE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _ffi() -> Any:
    # Versions of jax before 0.5 have this module as jax.extend.ffi.
    return jax.ffi if hasattr(jax, "ffi") else importlib.import_module("jax.extend.ffi")


class Handlers:
    """The loaded library, with its handlers registered in JAX."""

    def __init__(self) -> None:
        self._library = xla_library.load()
        self._ffi = _ffi()
        library = self._library.handlers
        stages = {
            "instantiate": self._ffi.pycapsule(library.hvd_xla_instantiate),
            "execute": self._ffi.pycapsule(library.hvd_xla_execute),
        }
        self._ffi.register_ffi_target(xla_library.TARGET, stages, platform="cpu")
        on_gpu = self._ffi.pycapsule(library.hvd_xla_execute_cuda)
        self._ffi.register_ffi_target(xla_library.TARGET, on_gpu, platform="CUDA")

    def lowering(self) -> Any:
        # For XLA the call has side effects, so that XLA never merges or drops a call that another rank may still make.
        # For JAX it has none, because JAX dispatches programs with effects through Python, at ten times the cost.
        return self._ffi.ffi_lowering(xla_library.TARGET, has_side_effect=True)

    def lost_rank(self) -> int | None:
        return self._library.lost_rank()


@functools.cache
def load() -> Handlers | None:
    """Return the handlers, or None if they cannot be used."""
    return Handlers() if unavailable() is None else None
