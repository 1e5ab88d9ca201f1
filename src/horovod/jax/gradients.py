# SPDX-License-Identifier: Apache-2.0
"""Collectives that can be differentiated. Gradients are Horovod's: where a sum over ranks would do, they average.

Gradients of values are collectives themselves: every rank that differentiates must do so with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from horovod.common import rules
from horovod.jax.adapter import JaxArray
from horovod.jax.primitive import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    KIND_NAMES,
    REDUCESCATTER,
    Spec,
    bind,
    membership,
)

Arrays = tuple[JaxArray, ...]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def collective(spec: Spec, arrays: Arrays) -> Arrays:
    """One collective on several arrays, in one call."""
    return bind(spec, arrays)


def _forward(spec: Spec, arrays: Arrays) -> tuple[Arrays, tuple[tuple[int, ...], ...]]:
    return bind(spec, arrays), _Shapes(tuple(array.shape for array in arrays))


@jax.tree_util.register_static
class _Shapes(tuple[Any, ...]):
    """Shapes of the inputs, kept from forward to backward as what they are: no arrays."""

    __slots__ = ()

    def __new__(cls, shapes: Sequence[tuple[int, ...]]) -> _Shapes:
        return super().__new__(cls, shapes)


def _backward(spec: Spec, shapes: Any, cotangents: Arrays) -> tuple[tuple[Any, ...]]:
    # Integers have no gradient; JAX sends float0 for them.
    real = [index for index, one in enumerate(cotangents) if one.dtype != jax.dtypes.float0]
    gradients = _GRADIENTS[spec.kind](spec, [shapes[i] for i in real], tuple(cotangents[i] for i in real))
    result: list[Any] = [None] * len(cotangents)
    for index, gradient in zip(real, gradients, strict=True):
        result[index] = gradient
    return (tuple(result),)


collective.defvjp(_forward, _backward)


def _again(spec: Spec, cotangents: Arrays) -> Arrays:
    """Differentiable in turn."""
    result: Arrays = collective(spec, cotangents)
    return result


def _of_allreduce(spec: Spec, shapes: Sequence[Any], cotangents: Arrays) -> Sequence[JaxArray]:
    if spec.op not in (rules.Average, rules.Sum, rules.Adasum):
        raise NotImplementedError(
            f"allreduce with op=hvd.{rules.OP_NAMES[spec.op]} has no gradient; use jax.lax.stop_gradient on its input"
        )
    return _again(spec.gradient(), cotangents)


def _of_allgather(spec: Spec, shapes: Sequence[Any], cotangents: Arrays) -> Sequence[JaxArray]:
    # The average over ranks, of which each takes its own rows.
    return _again(spec.gradient(kind=REDUCESCATTER, op=rules.Average), cotangents)


def _of_broadcast(spec: Spec, shapes: Sequence[Any], cotangents: Arrays) -> Sequence[JaxArray]:
    return _again(spec.gradient(kind=ALLREDUCE, op=rules.Average, only_root=True), cotangents)


def _of_alltoall(spec: Spec, shapes: Sequence[Any], cotangents: Arrays) -> Sequence[JaxArray]:
    return _again(spec.gradient(), cotangents)


def _of_reducescatter(spec: Spec, shapes: Sequence[Any], cotangents: Arrays) -> Sequence[JaxArray]:
    size = membership(spec.process_set).size
    factor = spec.prescale * spec.postscale * (size if spec.op == rules.Sum else 1)
    most = [-(-shape[0] // size) for shape in shapes]
    padded = tuple(_pad_rows(one * factor, rows) for one, rows in zip(cotangents, most, strict=True))
    gathered = _again(spec.gradient(kind=ALLGATHER, op=rules.Sum, prescale=1.0, postscale=1.0), padded)
    return [_drop_padding(one, shape[0], size) for one, shape in zip(gathered, shapes, strict=True)]


def _pad_rows(array: JaxArray, rows: int) -> JaxArray:
    return jnp.pad(array, [(0, rows - array.shape[0]), *[(0, 0)] * (array.ndim - 1)])


def _drop_padding(array: JaxArray, rows: int, size: int) -> JaxArray:
    """Undo _pad_rows after an allgather: shares differ by one row at most."""
    if rows % size == 0:
        return array
    shares = array.reshape(size, array.shape[0] // size, *array.shape[1:])
    return jnp.concatenate([shares[index, : rules.rows_of(index, rows, size)] for index in range(size)])


_GRADIENTS: dict[int, Callable[[Spec, Sequence[Any], Arrays], Sequence[JaxArray]]] = {
    ALLREDUCE: _of_allreduce,
    ALLGATHER: _of_allgather,
    BROADCAST: _of_broadcast,
    ALLTOALL: _of_alltoall,
    REDUCESCATTER: _of_reducescatter,
}
assert len(_GRADIENTS) == len(KIND_NAMES)
