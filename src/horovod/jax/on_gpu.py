# SPDX-License-Identifier: Apache-2.0
"""Arrays of a GPU outside jit. A collective on them is a small program, which JAX compiles once for each form.

What a program cannot do goes through host memory: results whose shape is not known in advance, and operations that
have begun and are not waited for.
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
    """The GPU that the arrays of one call lie on; None if that is none."""
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
    """Looking at each array takes longer than much else that is done with it."""
    started = getattr(xla_bridge, "_backends", None)
    return started is None or not started.keys() <= {"cpu"}


def runs_as_program(call: Call) -> bool:
    return call.kind in _OF_KNOWN_SHAPE


def run(call: Call, arrays: Sequence[JaxArray]) -> Sequence[JaxArray]:
    """Returns when the results are there: what fails is raised here, and not by whoever reads them first."""
    member = membership(call.process_set)
    with translated_errors():
        results: Sequence[JaxArray] = jax.block_until_ready(eager(call, member.size, member.index, *arrays))
    return results


# Programs are named after their function, and unnamed collectives after their program. The number of ranks and this
# one's place among them are in the shapes of results: a change makes another program.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def eager(call: Call, size: int, index: int, *arrays: JaxArray) -> tuple[JaxArray, ...]:
    return tuple(collective_p.bind(*arrays, call=call))


def confirm(arrays: Iterable[Any]) -> None:
    """Wait for arrays that lie on GPUs, and raise if a rank was lost meanwhile.

    A program goes on when the work of a collective is launched; what the GPU then does with the arrays of a rank that
    is no longer there is of no account.
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
