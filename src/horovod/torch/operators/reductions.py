# SPDX-License-Identifier: Apache-2.0
"""Operators that reduce: allreduce and reducescatter, both also for groups, and allreduce in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.common.process_sets import ProcessSet
from horovod.torch import autograd
from horovod.torch.adapter import Tensor
from horovod.torch.operators.definition import (
    define,
    dense,
    differentiate,
    empty_like,
    empty_with_rows,
    grad_name,
    in_place,
    keep_arguments,
    process_set,
)
from horovod.torch.operators.movements import gather_group_with_rows, gather_with_rows

_REDUCTION = "str? name, int op, float prescale, float postscale, int process_set"


# Allreduce


def _run_allreduce(tensor: Tensor, name: str | None, op: int, prescale: float, postscale: float, set_id: int) -> Tensor:
    return autograd.allreduce(dense(tensor), name, op, prescale, postscale, process_set(set_id))


def _allreduce_backward(ctx: Any, grad: Tensor) -> Any:
    name, *others = ctx.arguments
    return _allreduce(grad, grad_name(name), *others), *[None] * 5


_allreduce = define(
    "allreduce", f"(Tensor tensor, {_REDUCTION}) -> Tensor", _run_allreduce, lambda tensor, *_: empty_like(tensor)
)
differentiate("allreduce", keep_arguments, _allreduce_backward)


def allreduce(
    tensor: Tensor, name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> Tensor:
    result: Tensor = _allreduce(tensor, name, op, prescale, postscale, process_set.process_set_id)
    return result


def _run_allreduce_in_place(
    tensor: Tensor, name: str | None, op: int, prescale: float, postscale: float, set_id: int
) -> None:
    in_place(tensor, lambda it: autograd.allreduce_(it, name, op, prescale, postscale, process_set(set_id)))


_allreduce_in_place = define(
    "allreduce_", f"(Tensor(a!) tensor, {_REDUCTION}) -> ()", _run_allreduce_in_place, lambda *_: None
)


def allreduce_(
    tensor: Tensor, name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> Tensor:
    _allreduce_in_place(tensor, name, op, prescale, postscale, process_set.process_set_id)
    return tensor


# Groups of tensors


def _run_grouped_allreduce(
    tensors: Sequence[Tensor], name: str | None, op: int, prescale: float, postscale: float, set_id: int
) -> list[Tensor]:
    everything = [dense(tensor) for tensor in tensors]
    return autograd.grouped_allreduce(everything, name, op, prescale, postscale, process_set(set_id))


def _grouped_allreduce_backward(ctx: Any, grads: Sequence[Tensor]) -> Any:
    name, *others = ctx.arguments
    return _grouped_allreduce(list(grads), grad_name(name), *others), *[None] * 5


_grouped_allreduce = define(
    "grouped_allreduce",
    f"(Tensor[] tensors, {_REDUCTION}) -> Tensor[]",
    _run_grouped_allreduce,
    lambda tensors, *_: [empty_like(tensor) for tensor in tensors],
)
differentiate("grouped_allreduce", keep_arguments, _grouped_allreduce_backward)


def grouped_allreduce(
    tensors: Sequence[Tensor], name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> list[Tensor]:
    return list(_grouped_allreduce(list(tensors), name, op, prescale, postscale, process_set.process_set_id))


def grouped_allreduce_(
    tensors: Sequence[Tensor], name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> list[Tensor]:
    results = grouped_allreduce(tensors, name, op, prescale, postscale, process_set)
    return [tensor.copy_(result) for tensor, result in zip(tensors, results, strict=True)]


# Reducescatter


def _share(tensor: Tensor, set_id: int) -> Tensor:
    member = process_set(set_id)
    index, size = member.rank() or 0, member.size() or 1
    # Equal to rules.rows_of, but written so that the number of rows may be symbolic.
    return empty_with_rows(tensor, (tensor.shape[0] + size - 1 - index) // size)


def _run_reducescatter(
    tensor: Tensor, name: str | None, op: int, prescale: float, postscale: float, set_id: int
) -> Tensor:
    return autograd.reducescatter(dense(tensor), name, op, prescale, postscale, process_set(set_id))


def _reducescatter_backward(ctx: Any, grad: Tensor) -> Any:
    name, op, prescale, postscale, set_id = ctx.arguments
    factor = autograd.scatter_factor(op, prescale, postscale, process_set(set_id).size() or 1)
    return gather_with_rows(grad * factor, ctx.rows[0], grad_name(name), set_id), *[None] * 5


_reducescatter = define(
    "reducescatter",
    f"(Tensor tensor, {_REDUCTION}) -> Tensor",
    _run_reducescatter,
    lambda tensor, *arguments: _share(tensor, arguments[-1]),
)
differentiate("reducescatter", keep_arguments, _reducescatter_backward)


def reducescatter(
    tensor: Tensor, name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> Tensor:
    result: Tensor = _reducescatter(tensor, name, op, prescale, postscale, process_set.process_set_id)
    return result


def _run_grouped_reducescatter(
    tensors: Sequence[Tensor], name: str | None, op: int, prescale: float, postscale: float, set_id: int
) -> list[Tensor]:
    everything = [dense(tensor) for tensor in tensors]
    return autograd.grouped_reducescatter(everything, name, op, prescale, postscale, process_set(set_id))


def _grouped_reducescatter_backward(ctx: Any, grads: Sequence[Tensor]) -> Any:
    name, op, prescale, postscale, set_id = ctx.arguments
    factor = autograd.scatter_factor(op, prescale, postscale, process_set(set_id).size() or 1)
    scaled = [grad * factor for grad in grads]
    return gather_group_with_rows(scaled, ctx.rows, grad_name(name), set_id), *[None] * 5


_grouped_reducescatter = define(
    "grouped_reducescatter",
    f"(Tensor[] tensors, {_REDUCTION}) -> Tensor[]",
    _run_grouped_reducescatter,
    lambda tensors, *arguments: [_share(tensor, arguments[-1]) for tensor in tensors],
)
differentiate("grouped_reducescatter", keep_arguments, _grouped_reducescatter_backward)


def grouped_reducescatter(
    tensors: Sequence[Tensor], name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> list[Tensor]:
    return list(_grouped_reducescatter(list(tensors), name, op, prescale, postscale, process_set.process_set_id))
