# SPDX-License-Identifier: Apache-2.0
"""Makes JAX's CPU backend run programs one after the other, in the order in which they are called.

By default programs that do not depend on each other run at once. Ranks would then start the collectives of two calls
of one function in different orders, and one call's values would meet the other's.
"""

from __future__ import annotations

import jax
from jax._src import xla_bridge

_FLAG = "jax_cpu_enable_async_dispatch"


def _asynchronous() -> bool:
    flag = getattr(xla_bridge, "_CPU_ENABLE_ASYNC_DISPATCH", None)
    return True if flag is None else bool(flag.value)


def _set_order() -> bool:
    """False if the backend is there already and was told otherwise."""
    if not _asynchronous():
        return True
    if xla_bridge.backends_are_initialized():
        return False
    jax.config.update(_FLAG, False)
    return True


_in_order = _set_order()


def check() -> None:
    """Refuse to trace a collective into a program that may be overtaken by another."""
    if not _in_order or _asynchronous():
        raise RuntimeError(
            "horovod.jax inside jit needs JAX's CPU backend to run programs in the order in which they are called, the "
            "same on all ranks. Import horovod.jax before the first JAX computation of the script, or set "
            "JAX_CPU_ENABLE_ASYNC_DISPATCH=0 in the environment."
        )
