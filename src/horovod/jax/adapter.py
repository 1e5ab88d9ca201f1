# SPDX-License-Identifier: Apache-2.0
"""Access of the engine to JAX arrays: it reads them in place by their address, and builds results without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from horovod.common.arrays import Array, NumpyAdapter, address_of
from horovod.common.dtypes import ID_BY_DTYPE
from horovod.common.ops import Description

JaxArray: TypeAlias = Any  # jax.Array, or a tracer inside jit
Tree: TypeAlias = Any

# Alignment in bytes that lets jax.device_put use memory without copying it.
_ALIGNMENT = 64


class JaxAdapter(NumpyAdapter):
    """Adapter of JAX arrays (horovod.common.ops.Adapter). Outputs are NumPy arrays, which `as_jax` turns into JAX's."""

    @staticmethod
    def source(array: Any) -> Description:
        """Describe an array on the CPU that has been computed (see hold()), or a NumPy array copied from a GPU."""
        if isinstance(array, np.ndarray):
            return NumpyAdapter.source(array)
        return array.unsafe_buffer_pointer(), array.shape, ID_BY_DTYPE[array.dtype]

    @staticmethod
    def target(array: Any) -> Description:
        raise ValueError("JAX arrays are immutable: there are no in-place operations")

    @staticmethod
    def empty(like: Any, shape: tuple[int, ...]) -> tuple[Array, int]:
        dtype = like.dtype
        count = dtype.itemsize
        for extent in shape:
            count *= extent
        raw = np.empty(count + _ALIGNMENT, np.uint8)
        start = -address_of(raw) % _ALIGNMENT
        array = raw[start : start + count].view(dtype).reshape(shape)
        return array, address_of(array)


def is_traced(leaves: Sequence[Any]) -> bool:
    """Return True if a transformation (jit, grad, vmap, …) is tracing one of the leaves."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def is_float32(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray)) and leaf.dtype == np.float32


def concrete(leaf: Any, copy: bool = False) -> JaxArray:
    """Return a leaf of a tree as an array of one device; lists, scalars and NumPy arrays are converted.

    With `copy`, a NumPy array is always copied. Otherwise an old JAX shares its memory, which the program may change.
    """
    if not isinstance(leaf, jax.Array):
        array = jax.numpy.array(leaf) if copy else jax.numpy.asarray(leaf)
        _check_range(leaf, array.dtype)
        return array
    devices = leaf.devices()
    if len(devices) != 1:
        raise ValueError(
            f"horovod.jax works on arrays of one device, but this one is spread over {len(devices)}: run one process "
            "for each device, or use the shards of the array (x.addressable_shards)"
        )
    (device,) = devices
    if device.platform not in ("cpu", "gpu"):
        raise ValueError(
            f"horovod.jax works on arrays of the CPU and of NVIDIA's GPUs, but this one is on {device}: move it with "
            "jax.device_put(x, jax.devices('cpu')[0])"
        )
    if not isinstance(leaf.dtype, np.dtype) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise ValueError("A PRNG key array has no bytes to send; pass jax.random.key_data(key) and wrap the result")
    return leaf


def _check_range(values: Any, dtype: np.dtype[Any]) -> None:
    """Raise ValueError if NumPy integers do not fit into the dtype to which JAX converts them without a warning."""
    if not isinstance(values, (np.ndarray, np.generic)) or values.dtype.kind not in "iu" or values.dtype == dtype:
        return
    limits = np.iinfo(dtype)
    if values.size and not limits.min <= int(values.min()) <= int(values.max()) <= limits.max:
        raise ValueError(
            f"{values.dtype} values from {values.min()} to {values.max()} do not fit into {dtype}, which JAX makes of "
            "them: call jax.config.update('jax_enable_x64', True), or use horovod.numpy or broadcast_object for them"
        )


def hold(array: JaxArray) -> Any:
    """Wait until an array is computed; return a reference that keeps its memory from being freed or reused.

    While the reference exists, deleting the array frees nothing, and a program that the array is donated to works on a
    copy. A memoryview takes about 0.3 µs longer than waiting alone, whatever the size of the array.
    """
    try:
        # Python's buffer protocol supports NumPy's own dtypes; DLPack supports those of ml_dtypes as well.
        return memoryview(array) if array.dtype.isbuiltin == 1 else array.__dlpack__()
    except (BufferError, jax.errors.JaxRuntimeError):
        # Old versions of JAX have no float8 in DLPack. There, JAX keeps this reference as long as the array.
        return np.asarray(array)


def as_jax(arrays: Sequence[Array], gpu: Any = None) -> list[JaxArray]:
    """Convert arrays that the engine has filled to JAX arrays, in one call, which costs little more for many arrays."""
    result: list[JaxArray] = jax.device_put(list(arrays), _cpu() if gpu is None else gpu)
    return result


def _cpu() -> Any:
    return jax.devices("cpu")[0]
