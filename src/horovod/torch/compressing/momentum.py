# SPDX-License-Identifier: Apache-2.0
"""Communication hook of hvd.OneBitAdam: dense gradients in the warm-up, then momentum with one bit per value."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterable
from typing import Any

import torch

from horovod.common.compression_methods import OneBit
from horovod.common.host_shares import HostShares
from horovod.common.log import logger
from horovod.common.process_sets import ProcessSet
from horovod.common.rules import Sum
from horovod.torch.compressing.coded import CodedPart
from horovod.torch.compressing.hook import CompressionHook
from horovod.torch.compressing.loss_scale import LossScale
from horovod.torch.compressing.parts import BucketPart, Reduced
from horovod.torch.hooks.bucket import Bucket, Running
from horovod.torch.hooks.registration import register_comm_hook
from horovod.torch.optimizer import DistributedOptimizer, check_exclude
from horovod.torch.wrapping import WrappedOptimizer

Tensor = torch.Tensor


class MomentumHook(CompressionHook):
    """Hook that compresses the momentum of parameters whose variance is frozen."""

    def __init__(self, method: OneBit, optimizer: WrappedOptimizer) -> None:
        super().__init__(method)
        self._optimizer = weakref.ref(optimizer)
        self.agreed_at: int | None = None  # number of steps after which ranks have agreed to end the warm-up
        self._by_name: dict[str, Tensor] = {}

    def describe(self) -> str:
        """Return the method and its arguments as a text, which ranks compare."""
        return f"OneBitAdam, {self.method.describe()}"

    def make_part(self) -> BucketPart:
        """Return the initial state of a bucket."""
        return _MomentumPart(self.method, self.loss_scale, self)

    @property
    def optimizer(self) -> Any:
        """Optimizer that this hook belongs to; it outlives the hook's exchanges."""
        found = self._optimizer()
        assert found is not None
        return found

    def by_name(self) -> dict[str, Tensor]:
        """Return the optimizer's parameters by name."""
        names: dict[Tensor, str] = self.optimizer._parameter_names
        if len(names) != len(self._by_name):
            self._by_name = {name: parameter for parameter, name in names.items()}
        return self._by_name

    def after_step(self) -> None:
        """Freeze the variance of parameters that can be compressed, if ranks have agreed to end the warm-up."""
        if self.agreed_at is None or self.agreed_at != self.optimizer.param_groups[0]["steps"] - 1:
            return
        self.agreed_at = None
        chosen = [it for name, it in self.by_name().items() if self.method.compresses(name, it.nbytes)]
        self.optimizer.freeze(chosen)
        logger.info(
            "OneBitAdam: the warm-up has ended after %d steps; the variance of %d tensors is frozen",
            self.optimizer.param_groups[0]["steps"],
            len(chosen),
        )


class _MomentumPart(CodedPart):
    """State of one bucket. Its result is the gradient that turns each rank's momentum into the average of all."""

    def __init__(self, method: Any, scale: LossScale, hook: MomentumHook) -> None:
        super().__init__(method, scale)
        self._hook = hook

    def chooses(self, name: str, gradient: Tensor) -> bool:
        """Return True if the parameter's variance is frozen."""
        state = self._hook.optimizer.state.get(self._hook.by_name()[name])
        return bool(state) and int(state["frozen_at"]) > 0

    def exchange(self, bucket: Bucket) -> Running:
        """Reduce a bucket. In the warm-up, find out at intervals whether all ranks want to end it."""
        shares = yield from self._divided(bucket)
        adam = self._hook.optimizer
        if adam.is_at_decision() and not self.is_dense(shares):
            yield from self._vote(bucket, adam)
        return (yield from super().exchange(bucket))

    def reduce(self, bucket: Bucket, chosen: list[str], shares: HostShares) -> Reduced:
        """Return the sum of the gradients that turn the old momentum into the mean of all ranks' new momenta.

        The momentum is divided by the root of the variance before it is sent, so that it is in units of the step that
        it makes. The codec replaces each value of a block by the block's mean magnitude, which without this division
        would make an enormous step where the variance is small.
        """
        adam, parameters = self._hook.optimizer, self._hook.by_name()
        groups = {it: group for group in adam.param_groups for it in group["params"]}
        scale = self._loss_scale.current() or 1.0
        undo: list[tuple[Tensor, Tensor, float]] = []  # old momentum's part, divisor, and the gradient's factor
        for name in chosen:
            parameter = parameters[name]
            beta = float(groups[parameter]["betas"][0])
            old = adam.state[parameter]["exp_avg"].to(bucket.tensor.dtype) * (beta * scale)
            divisor = adam.denominator(parameter, groups[parameter]).to(bucket.tensor.dtype)
            bucket.gradients[name].mul_(1 - beta).add_(old).div_(divisor)
            undo.append((old.reshape(-1), divisor.reshape(-1), 1 - beta))
        total, kept = yield from super().reduce(bucket, chosen, shares)
        for part, (old, divisor, rate) in zip(torch.split(total, [len(it[0]) for it in undo]), undo, strict=True):
            part.mul_(divisor).sub_(old, alpha=bucket.size).div_(rate)
        return total, kept

    def _vote(self, bucket: Bucket, adam: Any) -> Generator[Any, Any, None]:
        """Agree whether the warm-up ends; ranks with different processors may have rounded the variance differently."""
        wants = torch.tensor([float(adam.has_settled())])
        total = yield bucket.allreduce_async(wants, Sum, stage="ends-warm-up")
        self._hook.agreed_at = adam.param_groups[0]["steps"] if int(total.item()) == bucket.size else None


def distribute(
    inner: Any,
    named_parameters: Iterable[tuple[str, Tensor]] | None,
    compression: dict[str, Any],
    passes: int,
    process_set: ProcessSet,
) -> WrappedOptimizer:
    """Return a distributed optimizer around `inner`, the optimizer that makes one rank's steps."""
    method = OneBit(**compression)
    wrapped = DistributedOptimizer(inner, named_parameters, backward_passes_per_step=passes, process_set=process_set)
    check_exclude(wrapped, method)
    register_comm_hook(wrapped, MomentumHook(method, wrapped))
    return wrapped
