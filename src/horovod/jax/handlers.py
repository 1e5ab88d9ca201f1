# SPDX-License-Identifier: Apache-2.0
"""The XLA handlers (libhvd_xla): loaded, given to XLA, and told which world and process sets are alive.

XLA refuses a handler whose version it does not accept, and with it the whole CPU backend; so versions of jaxlib that
nobody has tried yet are tried in another process first.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

from horovod.common.context import default_context
from horovod.common.context_numbers import number_of
from horovod.common.process_sets import ProcessSet

TARGET = "hvd_collective"
OLDEST = (0, 4, 38)
NEWEST_TRIED = (0, 10)
_PROBE_LIMIT_S = 60
_SWITCH = "HOROVOD_JAX_FFI"

_LIBRARY = Path(__file__).parents[1] / "libhvd_xla.so"


def version() -> tuple[int, ...]:
    return tuple(int(part) for part in jax.__version__.split(".")[:3] if part.isdigit())


def unavailable() -> str | None:
    """Why compiled programs cannot call the engine directly here (they then go through Python), or None."""
    switch = os.environ.get(_SWITCH, "")
    if switch == "0":
        return f"{_SWITCH}=0 is set"
    if not _LIBRARY.exists():
        return f"{_LIBRARY} is missing from this installation"
    if version() < OLDEST:
        return f"jax {jax.__version__} is older than {'.'.join(map(str, OLDEST))}"
    if switch != "1" and version()[:2] > NEWEST_TRIED and not _probe():
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
    # Its place before jax 0.5 was jax.extend.
    return jax.ffi if hasattr(jax, "ffi") else importlib.import_module("jax.extend.ffi")


class Handlers:
    """The loaded library. An Observer of the context: programs name process sets by numbers that outlive worlds."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(_LIBRARY))
        self._library.hvd_xla_bind.argtypes = [ctypes.c_int64, ctypes.c_void_p, *[ctypes.c_int32] * 4]
        self._library.hvd_xla_bind.restype = None
        self._library.hvd_xla_unbind.argtypes = [ctypes.c_int64]
        self._library.hvd_xla_unbind.restype = None
        self._library.hvd_xla_lost_rank.restype = ctypes.c_int32
        self._ffi = _ffi()
        stages = {
            "instantiate": self._ffi.pycapsule(self._library.hvd_xla_instantiate),
            "execute": self._ffi.pycapsule(self._library.hvd_xla_execute),
        }
        self._ffi.register_ffi_target(TARGET, stages, platform="cpu")
        default_context.observe(self)

    def lowering(self) -> Any:
        # To XLA the call has side effects: it never merges or drops one that another rank may still make. To JAX it
        # has none: programs with effects are dispatched through Python, which costs ten times as much.
        return self._ffi.ffi_lowering(TARGET, has_side_effect=True)

    def lost_rank(self) -> int | None:
        rank = int(self._library.hvd_xla_lost_rank())
        return rank if rank >= 0 else None

    def bound(self, process_set: ProcessSet) -> None:
        member = process_set.membership
        if member is not None and member.index >= 0:
            rank = default_context.topology.rank
            self._library.hvd_xla_bind(
                number_of(process_set), member.world.address, member.id, member.size, member.index, rank
            )

    def unbound(self, process_set: ProcessSet) -> None:
        self._library.hvd_xla_unbind(number_of(process_set))


@functools.cache
def load() -> Handlers | None:
    """The handlers, or None where they cannot be used."""
    return Handlers() if unavailable() is None else None
