# SPDX-License-Identifier: Apache-2.0
"""Collectives on GPU arrays outside jit, each run as a small program that JAX compiles once per shape and dtype.

Collectives that cannot be compiled go through host memory: those whose results have unknown shapes, and asynchronous
ones.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax._src import xla_bridge

from horovod._engine import EngineError
from horovod.common.calls import ALLREDUCE, BROADCAST, REDUCESCATTER, Call
from horovod.common.context import default_context
from horovod.common.handles import translate
from horovod.jax.adapter import JaxArray
from horovod.jax.errors import translated_errors
from horovod.jax.primitive import collective_p, membership

_PLATFORM = "gpu"
_OF_KNOWN_SHAPE = (ALLREDUCE, BROADCAST, REDUCESCATTER)


def gpu_of(arrays: Iterable[Any]) -> Any:
    """Return the GPU on which the arrays of one call are, or None if they are not on a GPU."""
    if not _any_in_use():
        return None
    devices = {device for array in arrays if isinstance(array, jax.Array) for device in array.devices()}
    if not any(device.platform == _PLATFORM for device in devices):
        return None
    if len(devices) > 1:
        raise ValueError(
            f"The arrays of one call of horovod.jax must lie on one device, not on {sorted(map(str, devices))}: move "
            "them with jax.device_put(x, device)"
        )
    return devices.pop()


def _any_in_use() -> bool:
    """Return True if JAX uses more than the CPU. This saves looking at each array, which takes comparatively long."""
    started = getattr(xla_bridge, "_backends", None)
    return started is None or not started.keys() <= {"cpu"}


def runs_as_program(call: Call) -> bool:
    return call.kind in _OF_KNOWN_SHAPE


def run(call: Call, arrays: Sequence[JaxArray]) -> Sequence[JaxArray]:
    """Run a program and wait for its results, so that a failure is raised here and not at their first use."""
    member = membership(call.process_set)
    with translated_errors():
        results: Sequence[JaxArray] = jax.block_until_ready(eager(call, member.size, member.index, *arrays))
    return results


# JAX names this program after its function, and an unnamed collective in it is named after the program.
# The number of ranks and this rank's index determine the shapes of results, so each combination needs a program.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def eager(call: Call, size: int, index: int, *arrays: JaxArray) -> tuple[JaxArray, ...]:
    return tuple(collective_p.bind(*arrays, call=call))


def confirm(arrays: Iterable[Any]) -> None:
    """Wait for arrays on GPUs, and raise an error if a rank was lost before they were computed.

    A program continues when the work of a collective is launched. If a rank was lost, the result of this work is not
    usable.
    """
    found = [array for array in arrays if isinstance(array, jax.Array)]
    gpus = {device for array in found for device in array.devices() if device.platform == _PLATFORM}
    if not gpus:
        return
    jax.block_until_ready(found)
    if not default_context.is_initialized:
        return
    try:
        for gpu in gpus:
            default_context.world.let_wait(gpu.local_hardware_id, 0)
    except EngineError as error:
        raise translate(error, "a commit") from None
