# SPDX-License-Identifier: Apache-2.0
"""Gradients of the collectives, and blocking collectives that record them for tensors that require a gradient.

Gradients are those of Horovod, which averages where mathematics would sum. A tensor that needs no gradient is passed to
the engine directly, because torch.autograd.Function costs more than a small collective. Backward passes call the
functions of this module, so that gradients of gradients work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, Call
from horovod.common.process_sets import ProcessSet
from horovod.common.rules import Average, Sum, resolve_op
from horovod.torch.adapter import Tensor
from horovod.torch.direct import collectives_for, collectives_for_group, finish, run


def _recorded(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _grad_name(name: str | None) -> str | None:
    """Return the backward pass's name, by which ranks match it because their graphs may run in different orders."""
    return f"{name}.grad" if name else None


# Blocking collectives that return new tensors. They have only positional arguments, as operators in compiled graphs do.


def allreduce(
    tensor: Tensor, name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> Tensor:
    collectives = collectives_for(tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        return HorovodAllreduce.apply(tensor, None, name, op, prescale, postscale, process_set)  # type: ignore[no-any-return, no-untyped-call]
    call = Call(ALLREDUCE, process_set, name, op, prescale, postscale)
    result: Tensor = finish(collectives.start(call, [tensor], will_wait=True))
    return result


def grouped_allreduce(
    tensors: Sequence[Tensor], name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> list[Tensor]:
    collectives = collectives_for_group(tensors)
    if _recorded(*tensors):
        arguments = (None, name, op, prescale, postscale, process_set)
        return list(HorovodGroupedAllreduce.apply(*arguments, *tensors))  # type: ignore[no-untyped-call]
    call = Call(ALLREDUCE, process_set, name, op, prescale, postscale, grouped=True)
    return list(finish(collectives.start(call, tensors, will_wait=True)))


def allgather(tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
    collectives = collectives_for(tensor)
    if _recorded(tensor):
        return HorovodAllgather.apply(tensor, name, process_set)  # type: ignore[no-any-return, no-untyped-call]
    result: Tensor = finish(collectives.start(Call(ALLGATHER, process_set, name), [tensor], will_wait=True))
    return result


def grouped_allgather(tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet) -> list[Tensor]:
    collectives = collectives_for_group(tensors)
    if _recorded(*tensors):
        return list(HorovodGroupedAllgather.apply(name, process_set, *tensors))  # type: ignore[no-untyped-call]
    return list(finish(collectives.start(Call(ALLGATHER, process_set, name, grouped=True), tensors, will_wait=True)))


def broadcast(tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
    collectives = collectives_for(tensor)
    if _recorded(tensor):
        return HorovodBroadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-any-return, no-untyped-call]
    call = Call(BROADCAST, process_set, name, root=root_rank)
    result: Tensor = finish(collectives.start(call, [tensor], will_wait=True))
    return result


def alltoall(tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> tuple[Tensor, Tensor]:
    """Exchange rows; return (output, received splits), even if no splits are given."""
    collectives = collectives_for(tensor)
    if _recorded(tensor):
        return HorovodAlltoall.apply(tensor, splits, name, process_set)  # type: ignore[no-any-return, no-untyped-call]
    call = Call(ALLTOALL, process_set, name, splits=splits)
    result: tuple[Tensor, Tensor] = finish(collectives.start(call, [tensor], will_wait=True))
    return result


def reducescatter(
    tensor: Tensor, name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> Tensor:
    collectives = collectives_for(tensor)
    if _recorded(tensor):
        return HorovodReducescatter.apply(tensor, name, op, process_set, prescale, postscale)  # type: ignore[no-any-return, no-untyped-call]
    call = Call(REDUCESCATTER, process_set, name, op, prescale, postscale)
    result: Tensor = finish(collectives.start(call, [tensor], will_wait=True))
    return result


def grouped_reducescatter(
    tensors: Sequence[Tensor], name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> list[Tensor]:
    collectives = collectives_for_group(tensors)
    if _recorded(*tensors):
        arguments = (name, op, process_set, prescale, postscale)
        return list(HorovodGroupedReducescatter.apply(*arguments, *tensors))  # type: ignore[no-untyped-call]
    call = Call(REDUCESCATTER, process_set, name, op, prescale, postscale, grouped=True)
    return list(finish(collectives.start(call, tensors, will_wait=True)))


# The collectives below work in place and record no gradient.


def allreduce_(
    tensor: Tensor, name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> Tensor:
    result: Tensor = run(Call(ALLREDUCE, process_set, name, op, prescale, postscale, in_place=True), [tensor])
    return result


def grouped_allreduce_(
    tensors: Sequence[Tensor], name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> list[Tensor]:
    call = Call(ALLREDUCE, process_set, name, op, prescale, postscale, grouped=True, in_place=True)
    return list(run(call, tensors))


def broadcast_(tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
    result: Tensor = run(Call(BROADCAST, process_set, name, root=root_rank, in_place=True), [tensor])
    return result


# These functions compute gradients of operations that move rows, for eager and compiled code.


def allgather_gradient(grad: Tensor, rows: int, name: str | None, process_set: ProcessSet) -> Tensor:
    """Return this rank's rows of the gradient, averaged over the ranks."""
    start = _starts([rows], name, process_set)[0]
    return allreduce(grad.contiguous(), name, Average, 1.0, 1.0, process_set).narrow(0, start, rows)


def grouped_allgather_gradient(
    grads: Sequence[Tensor], rows: Sequence[int], name: str | None, process_set: ProcessSet
) -> list[Tensor]:
    """Return this rank's rows of each gradient of a group, averaged over the ranks."""
    starts = _starts(rows, name, process_set)
    averages = grouped_allreduce([grad.contiguous() for grad in grads], name, Average, 1.0, 1.0, process_set)
    return [average.narrow(0, start, count) for average, start, count in zip(averages, starts, rows, strict=True)]


def _starts(rows: Sequence[int], name: str | None, process_set: ProcessSet) -> list[int]:
    """Return where this rank's rows begin in each gathered tensor: after the rows of the ranks before it."""
    counts = torch.tensor([list(rows)], dtype=torch.int64)
    everyone = run(Call(ALLGATHER, process_set, f"{name}.sizes" if name else None), [counts])
    return [int(start) for start in everyone[: process_set.rank()].sum(0).tolist()]


def alltoall_gradient(grad: Tensor, received: Any, rows: int, name: str | None, process_set: ProcessSet) -> Tensor:
    """Send every row back to the rank it came from; rows that were not sent get zero gradients."""
    back, _ = alltoall(grad.contiguous(), received, name, process_set)
    missing = rows - back.shape[0]
    return torch.cat([back, back.new_zeros((missing, *back.shape[1:]))]) if missing else back


def broadcast_gradient(grad: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
    """Return the average over the ranks on the root, and zeros on other ranks."""
    average = allreduce(grad.contiguous(), name, Average, 1.0, 1.0, process_set)
    is_root = (process_set.ranks or [])[process_set.rank() or 0] == root_rank
    return average if is_root else torch.zeros_like(average)


def scatter_factor(op: int, prescale: float, postscale: float, size: int) -> float:
    """Return the factor by which the gathered gradient of a reducescatter is multiplied."""
    return prescale * postscale * (size if op == Sum else 1)


def _scaled(grad: Tensor, factor: float) -> Tensor:
    return (grad if factor == 1 else grad * factor).contiguous()


# Autograd functions with Horovod's names


class HorovodAllreduce(torch.autograd.Function):
    """Allreduce whose gradient is an allreduce with the same operation and factors."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> Tensor:
        op = resolve_op(op, average)
        ctx.backward_arguments = (_grad_name(name), op, prescale_factor, postscale_factor, process_set)
        return allreduce(tensor, name, op, prescale_factor, postscale_factor, process_set)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return allreduce(grad_output.contiguous(), *ctx.backward_arguments), *[None] * 6


class HorovodGroupedAllreduce(torch.autograd.Function):
    """Grouped allreduce whose gradients are a grouped allreduce with the same operation and factors."""

    @staticmethod
    def forward(
        ctx: Any,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        op = resolve_op(op, average)
        ctx.backward_arguments = (_grad_name(name), op, prescale_factor, postscale_factor, process_set)
        results = grouped_allreduce(tensors, name, op, prescale_factor, postscale_factor, process_set)
        ctx.differentiable = _mark_differentiable(ctx, results)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grad_output: Tensor) -> Any:
        grads = [grad_output[index].contiguous() for index in ctx.differentiable]
        return *[None] * 6, *_placed(grouped_allreduce(grads, *ctx.backward_arguments), ctx, len(grad_output))


class HorovodAllgather(torch.autograd.Function):
    """Allgather whose gradient is averaged over the ranks; each rank gets that of its own rows."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
        result = allgather(tensor, name, process_set)
        ctx.backward_arguments = (tensor.shape[0], _grad_name(name), process_set)
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return allgather_gradient(grad_output, *ctx.backward_arguments), None, None


class HorovodGroupedAllgather(torch.autograd.Function):
    """Grouped allgather whose gradients are averaged over the ranks; each rank gets those of its own rows."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor) -> tuple[Tensor, ...]:
        results = grouped_allgather(tensors, name, process_set)
        ctx.differentiable = _mark_differentiable(ctx, results)
        rows = [tensors[index].shape[0] for index in ctx.differentiable]
        ctx.backward_arguments = (rows, _grad_name(name), process_set)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grad_output: Tensor) -> Any:
        grads = [grad_output[index] for index in ctx.differentiable]
        return None, None, *_placed(grouped_allgather_gradient(grads, *ctx.backward_arguments), ctx, len(grad_output))


class HorovodBroadcast(torch.autograd.Function):
    """Broadcast whose gradient is averaged over the ranks on the root, and zero on other ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
        ctx.backward_arguments = (root_rank, _grad_name(name), process_set)
        return broadcast(tensor, root_rank, name, process_set)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return broadcast_gradient(grad_output, *ctx.backward_arguments), None, None, None


class HorovodAlltoall(torch.autograd.Function):
    """Alltoall whose gradient sends each row back to the rank that it came from."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> tuple[Tensor, Tensor]:
        output, received = alltoall(tensor, splits, name, process_set)
        ctx.mark_non_differentiable(received)
        ctx.backward_arguments = (received.tolist(), tensor.shape[0], _grad_name(name), process_set)
        return output, received

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, *dead_gradients: Tensor) -> Any:
        return alltoall_gradient(grad_output, *ctx.backward_arguments), None, None, None


class HorovodReducescatter(torch.autograd.Function):
    """Reducescatter whose gradient is an allgather, times the factors and, for a sum, the number of ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> Tensor:
        result = reducescatter(tensor, name, op, prescale_factor, postscale_factor, process_set)
        ctx.factor = scatter_factor(op, prescale_factor, postscale_factor, process_set.size() or 1)
        ctx.backward_arguments = (_grad_name(name), process_set)
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return allgather(_scaled(grad_output, ctx.factor), *ctx.backward_arguments), *[None] * 5


class HorovodGroupedReducescatter(torch.autograd.Function):
    """Grouped reducescatter whose gradients are a grouped allgather, scaled like that of HorovodReducescatter."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        results = grouped_reducescatter(tensors, name, op, prescale_factor, postscale_factor, process_set)
        ctx.differentiable = _mark_differentiable(ctx, results)
        ctx.factor = scatter_factor(op, prescale_factor, postscale_factor, process_set.size() or 1)
        ctx.backward_arguments = (_grad_name(name), process_set)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grad_output: Tensor) -> Any:
        grads = [_scaled(grad_output[index], ctx.factor) for index in ctx.differentiable]
        return *[None] * 5, *_placed(grouped_allgather(grads, *ctx.backward_arguments), ctx, len(grad_output))


def _mark_differentiable(ctx: Any, results: Sequence[Tensor]) -> list[int]:
    """Return the indices of a group's floating-point results, and mark the others as not differentiable."""
    differentiable = [index for index, result in enumerate(results) if result.is_floating_point()]
    ctx.mark_non_differentiable(*[result for result in results if not result.is_floating_point()])
    return differentiable


def _placed(grads: Sequence[Tensor], ctx: Any, count: int) -> list[Tensor | None]:
    """Return the gradients of the differentiable members at their indices in the group, and None at all others."""
    placed: list[Tensor | None] = [None] * count
    for index, grad in zip(ctx.differentiable, grads, strict=True):
        placed[index] = grad
    return placed
