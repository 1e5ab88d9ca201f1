# SPDX-License-Identifier: Apache-2.0
"""Collectives that can be differentiated. Gradients are Horovod's, which averages where mathematics would sum.

Gradients of collectives are collectives, so either all ranks differentiate or none does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from horovod.common import rules
from horovod.common.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, Call
from horovod.jax.adapter import JaxArray
from horovod.jax.primitive import bind, membership

Arrays = tuple[JaxArray, ...]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def collective(call: Call, arrays: Arrays) -> Arrays:
    """Run one collective on several arrays, in one call."""
    return bind(call, arrays)


def _forward(call: Call, arrays: Arrays) -> tuple[Arrays, tuple[tuple[int, ...], ...]]:
    return bind(call, arrays), _Shapes(tuple(array.shape for array in arrays))


@jax.tree_util.register_static
class _Shapes(tuple[Any, ...]):
    """Shapes of the inputs, which JAX passes from forward to backward without turning them into arrays."""

    __slots__ = ()

    def __new__(cls, shapes: Sequence[tuple[int, ...]]) -> _Shapes:
        return super().__new__(cls, shapes)


def _backward(call: Call, shapes: Any, cotangents: Arrays) -> tuple[tuple[Any, ...]]:
    # Integers have no gradient; JAX sends float0 for them.
    real = [index for index, one in enumerate(cotangents) if one.dtype != jax.dtypes.float0]
    gradients = _GRADIENTS[call.kind](call, [shapes[i] for i in real], tuple(cotangents[i] for i in real))
    result: list[Any] = [None] * len(cotangents)
    for index, gradient in zip(real, gradients, strict=True):
        result[index] = gradient
    return (tuple(result),)


collective.defvjp(_forward, _backward)


def _gradient(call: Call, **changes: Any) -> Call:
    """Return the call for the backward pass, whose name differs from that of the forward pass."""
    return replace(call, name=f"{call.name}.gradient" if call.name else None, **changes)


def _again(call: Call, cotangents: Arrays) -> Arrays:
    """Run a collective of the backward pass so that it can be differentiated, too."""
    result: Arrays = collective(call, cotangents)
    return result


def _of_allreduce(call: Call, shapes: Sequence[Any], cotangents: Arrays) -> Sequence[JaxArray]:
    if call.op not in (rules.Average, rules.Sum, rules.Adasum):
        raise NotImplementedError(
            f"allreduce with op=hvd.{rules.OP_NAMES[call.op]} has no gradient; use jax.lax.stop_gradient on its input"
        )
    return _again(_gradient(call), cotangents)


def _of_allgather(call: Call, shapes: Sequence[Any], cotangents: Arrays) -> Sequence[JaxArray]:
    # Return this rank's own rows of the average over the ranks.
    return _again(_gradient(call, kind=REDUCESCATTER, op=rules.Average), cotangents)


def _of_broadcast(call: Call, shapes: Sequence[Any], cotangents: Arrays) -> Sequence[JaxArray]:
    return _again(_gradient(call, kind=ALLREDUCE, op=rules.Average, only_root=True), cotangents)


def _of_alltoall(call: Call, shapes: Sequence[Any], cotangents: Arrays) -> Sequence[JaxArray]:
    return _again(_gradient(call), cotangents)


def _of_reducescatter(call: Call, shapes: Sequence[Any], cotangents: Arrays) -> Sequence[JaxArray]:
    size = membership(call.process_set).size
    factor = call.prescale * call.postscale * (size if call.op == rules.Sum else 1)
    most = [-(-shape[0] // size) for shape in shapes]
    padded = tuple(_pad_rows(one * factor, rows) for one, rows in zip(cotangents, most, strict=True))
    gathered = _again(_gradient(call, kind=ALLGATHER, op=rules.Sum, prescale=1.0, postscale=1.0), padded)
    return [_drop_padding(one, shape[0], size) for one, shape in zip(gathered, shapes, strict=True)]


def _pad_rows(array: JaxArray, rows: int) -> JaxArray:
    return jnp.pad(array, [(0, rows - array.shape[0]), *[(0, 0)] * (array.ndim - 1)])


def _drop_padding(array: JaxArray, rows: int, size: int) -> JaxArray:
    """Undo _pad_rows after an allgather, in which shares differ by at most one row."""
    if rows % size == 0:
        return array
    shares = array.reshape(size, array.shape[0] // size, *array.shape[1:])
    return jnp.concatenate([shares[index, : rules.rows_of(index, rows, size)] for index in range(size)])


_GRADIENTS: dict[int, Callable[[Call, Sequence[Any], Arrays], Sequence[JaxArray]]] = {
    ALLREDUCE: _of_allreduce,
    ALLGATHER: _of_allgather,
    BROADCAST: _of_broadcast,
    ALLTOALL: _of_alltoall,
    REDUCESCATTER: _of_reducescatter,
}
