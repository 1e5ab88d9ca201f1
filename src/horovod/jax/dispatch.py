# SPDX-License-Identifier: Apache-2.0
"""Setting that makes JAX's CPU backend run programs one after the other, in the order of their calls.

By default JAX runs programs that do not depend on each other concurrently. If a function is called twice, ranks could
then start the collectives of both calls in different orders, and would combine values of different calls.
"""

from __future__ import annotations

import jax
from jax._src import xla_bridge

_FLAG = "jax_cpu_enable_async_dispatch"


def _asynchronous() -> bool:
    flag = getattr(xla_bridge, "_CPU_ENABLE_ASYNC_DISPATCH", None)
    return True if flag is None else bool(flag.value)


def _set_order() -> bool:
    """Set the order. Return False if the backend was started with another setting before."""
    if not _asynchronous():
        return True
    if xla_bridge.backends_are_initialized():
        return False
    jax.config.update(_FLAG, False)
    return True


_in_order = _set_order()


def check() -> None:
    """Raise RuntimeError if another program could overtake the program that is being traced."""
    if not _in_order or _asynchronous():
        raise RuntimeError(
            "horovod.jax inside jit needs JAX's CPU backend to run programs in the order in which they are called, the "
            "same on all ranks. Import horovod.jax before the first JAX computation of the script, or set "
            "JAX_CPU_ENABLE_ASYNC_DISPATCH=0 in the environment."
        )
