# SPDX-License-Identifier: Apache-2.0
"""Compressed allreduce of one tensor without state: hvd.allreduce(compression=hvd.Compression.int8())."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import torch

from horovod.common.calls import ALLREDUCE, Call
from horovod.common.compression_methods import CompressionMethod, Int8
from horovod.common.context import default_context
from horovod.common.exceptions import HorovodMismatchError
from horovod.common.process_sets import ProcessSet
from horovod.common.rules import Adasum, Average, Sum
from horovod.torch.compressing.coded import CodedPart
from horovod.torch.compressing.loss_scale import LossScale
from horovod.torch.hooks.bucket import Bucket
from horovod.torch.hooks.runs import HookRun

Tensor = torch.Tensor
_WAIT_S = 1.0
_KEEPS_STATE = (
    "hvd.allreduce does not support compression={method}: what it loses has to be added to the next step's gradient, "
    "which only an optimizer can do. Pass it to hvd.DistributedOptimizer(), or use hvd.Compression.int8()"
)


class _Numbers:
    """Numbers for exchanges without a name. They count from 0 in each world, as the engine's own names do."""

    def __init__(self) -> None:
        self._world: object = None
        self._count = itertools.count()

    def next(self) -> int:
        if self._world is not default_context.world:
            self._world, self._count = default_context.world, itertools.count()
        return next(self._count)


_numbers = _Numbers()


class _BarePart(CodedPart):
    """Compressed exchange of one tensor. Ranks compare method and shape before they exchange values."""

    def __init__(self, method: Int8, tensor: Tensor) -> None:
        super().__init__(replace(method, error_feedback=False), LossScale())
        dtype = str(tensor.dtype).removeprefix("torch.")
        self._wanted = f"compression={method.describe()} of {tensor.numel()} values of {dtype}"

    def _facts(self) -> dict[str, Any]:
        return {"wanted": self._wanted}

    def _take_over(self, bucket: Bucket, facts: dict[str, Any]) -> Generator[Any, Any, None]:
        texts = yield bucket.allgather_async(
            torch.tensor(list(self._wanted.encode()), dtype=torch.uint8), stage="wanted"
        )
        ranks = bucket.process_set.ranks or range(bucket.size)
        wanted = [bytes(it.tolist()).decode() for it in texts]
        other = next(index for index, it in enumerate(wanted) if it != wanted[0])
        raise HorovodMismatchError(
            f"The ranks disagree about an allreduce: {wanted[0]} on rank {ranks[0]}, {wanted[other]} on rank "
            f"{ranks[other]}. Use the same compression and shape on every rank."
        )


def compressed_allreduce(
    tensor: Tensor,
    method: CompressionMethod,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Tensor:
    """Reduce a tensor into a new one. What leaves a host, or with scope="all" a rank, travels as int8."""
    allowed = _checked(tensor, method, op)
    if torch.is_grad_enabled() and tensor.requires_grad:
        arguments = (tensor, allowed, name, op, prescale, postscale, process_set)
        return _Recorded.apply(*arguments)  # type: ignore[no-any-return, no-untyped-call]
    return _reduced(tensor, allowed, name, op, prescale, postscale, process_set)


class _Recorded(torch.autograd.Function):
    """Autograd function: the gradient of an allreduce is an allreduce of the gradient, with the same compression."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, method: Int8, name: str | None, *rest: Any) -> Tensor:
        ctx.arguments = (method, f"{name}.grad" if name else None, *rest)
        return _reduced(tensor, method, name, *rest)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return compressed_allreduce(gradient, *ctx.arguments), *[None] * 6


def _reduced(
    tensor: Tensor, method: Int8, name: str | None, op: int, prescale: float, postscale: float, process_set: ProcessSet
) -> Tensor:
    wide = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    values = tensor.detach().reshape(-1).to(wide, copy=True)
    if prescale != 1.0:
        values.mul_(prescale)
    name_of = f"allreduce.compressed.{name or f'noname.{_numbers.next()}'}"
    call = Call(ALLREDUCE, process_set, None, op)
    bucket = Bucket(0, True, values, {name or "": values}, call, lambda stage: f"{name_of}.{stage}")
    if bucket.size > 1:
        run = HookRun(_BarePart(method, tensor).exchange, bucket)
        try:
            while not run.is_over:
                run.wait(_WAIT_S)
                run.advance()
        except BaseException:
            run.abandon()
            raise
        if run.error is not None:
            raise run.error
        assert run.result is not None
        values = run.result
    if postscale != 1.0:
        values.mul_(postscale)
    return values.to(tensor.dtype).view(tensor.shape)


def _checked(tensor: Tensor, method: CompressionMethod, op: int) -> Int8:
    """Return the method if it can reduce the tensor without state from earlier steps; else raise ValueError."""
    described = method.describe()
    if not isinstance(method, Int8):
        raise ValueError(_KEEPS_STATE.format(method=described))
    if op == Adasum or op not in (Average, Sum):
        raise ValueError(f"hvd.allreduce with compression={described} supports op=hvd.Average and op=hvd.Sum only")
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"hvd.allreduce with compression={described} does not support sparse tensors: their parts are gathered. "
            "Use tensor.to_dense()"
        )
    if not tensor.dtype.is_floating_point:
        raise ValueError(
            f"hvd.allreduce with compression={described} supports floating-point tensors, not {tensor.dtype}"
        )
    return method
