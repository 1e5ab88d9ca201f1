# SPDX-License-Identifier: Apache-2.0
"""Compressed allreduce of a tree without state: hvd.allreduce(compression=hvd.Compression.int8())."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp

from horovod.common.calls import ALLREDUCE, Call
from horovod.common.compression_methods import CompressionMethod, Int8
from horovod.common.rules import Average, Sum
from horovod.jax.adapter import JaxArray
from horovod.jax.compressing.methods import CodedWay
from horovod.jax.compressing.reducer import Reducer


def compressed_allreduce(call: Call, arrays: list[JaxArray], method: CompressionMethod) -> list[JaxArray]:
    """Reduce arrays as one unit. What leaves a host, or with scope="all" a rank, travels as int8."""
    allowed = _checked(call, method)
    for array in arrays:
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(
                f"hvd.allreduce with compression={method.describe()} supports floating-point arrays, not {array.dtype}"
            )
    return list(_reduced(call, replace(allowed, error_feedback=False), tuple(map(jnp.asarray, arrays))))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _reduced(call: Call, method: Int8, arrays: tuple[JaxArray, ...]) -> tuple[JaxArray, ...]:
    scaled = [array * call.prescale for array in arrays] if call.prescale != 1.0 else list(arrays)
    reducer = Reducer(CodedWay(method), call.op, 1.0, 1.0, call.name, call.process_set)
    reduced, _ = reducer.reduce(scaled, reducer.first_state(scaled))
    return tuple(one * call.postscale for one in reduced) if call.postscale != 1.0 else tuple(reduced)


def _forward(call: Call, method: Int8, arrays: tuple[JaxArray, ...]) -> tuple[tuple[JaxArray, ...], None]:
    return _reduced(call, method, arrays), None


def _backward(call: Call, method: Int8, _: None, cotangents: tuple[JaxArray, ...]) -> tuple[tuple[JaxArray, ...]]:
    """Return the gradient of an allreduce, which is an allreduce of the gradient with the same compression."""
    name = f"{call.name}.gradient" if call.name else None
    return (_reduced(replace(call, name=name), method, cotangents),)


_reduced.defvjp(_forward, _backward)


def _checked(call: Call, method: CompressionMethod) -> Int8:
    """Return the method if it can serve the call without state from earlier steps; else raise an error."""
    described = method.describe()
    if call.kind != ALLREDUCE:
        raise ValueError(f"hvd.{call.operation} does not support compression={described}, only hvd.allreduce does")
    if not isinstance(method, Int8):
        raise ValueError(
            f"hvd.allreduce does not support compression={described}: what it loses has to be added to the next step's "
            "gradient, which only an optimizer can do. Pass it to hvd.DistributedOptimizer(), or use "
            "hvd.Compression.int8()"
        )
    if call.op not in (Average, Sum):
        raise ValueError(f"hvd.allreduce with compression={described} supports op=hvd.Average and op=hvd.Sum only")
    return method
