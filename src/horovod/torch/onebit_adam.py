# SPDX-License-Identifier: Apache-2.0
"""hvd.OneBitAdam: an Adam that exchanges momentum with one bit per value once its variance has settled."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.wrapping import WrappedOptimizer

Tensor = torch.Tensor
_SETTLED = 0.96  # ratio of the variance's norm to that of 1 / (1 - beta2) steps ago at which the warm-up ends
_POINTS = 10  # number of norms taken during these steps
# Frozen variances are at least this share of their tensor's mean.
# Values without gradients in the warm-up would otherwise make enormous steps as soon as they get gradients.
_LEAST_SHARE = 1e-4


class _OneBitAdam(torch.optim.Optimizer):
    """Optimizer for the steps on one rank. Its gradients are averages, or equivalent to averages of momentum."""

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        lr_warmup_steps: int,
        freeze_after: int | None,
    ) -> None:
        first, second = betas
        if not 0 <= first < 1 or not 0 <= second < 1:
            raise ValueError(f"OneBitAdam: betas must be two numbers, each at least 0 and below 1, not {betas!r}")
        if not lr >= 0 or not eps > 0 or not weight_decay >= 0:
            raise ValueError(
                f"OneBitAdam: lr and weight_decay must be at least 0 and eps above 0, not lr={lr!r}, "
                f"weight_decay={weight_decay!r}, eps={eps!r}"
            )
        if lr_warmup_steps < 0 or (freeze_after is not None and freeze_after < 1):
            raise ValueError(
                "OneBitAdam: lr_warmup_steps must be at least 0 and freeze_after None or at least 1, not "
                f"{lr_warmup_steps!r} and {freeze_after!r}"
            )
        options = {"lr": lr, "betas": (first, second), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, options)
        # Options that all ranks need to end the warm-up in one step; state_dict() contains them like all options.
        self.param_groups[0].update(
            steps=0,
            is_frozen=False,
            variance_norms=[],
            freeze_after=freeze_after,
            lr_warmup_steps=lr_warmup_steps,
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step of Adam with decoupled weight decay. The variance of frozen parameters stays as it is."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        control = self.param_groups[0]
        control["steps"] += 1
        self._watch_variance(control)
        hook = getattr(self, "_comm_hook", None)
        if hook is not None:
            hook.after_step()
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["frozen_at"] = torch.tensor(0.0)  # step in which the variance was frozen, or 0
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        gradient, (first, second) = parameter.grad, group["betas"]
        assert gradient is not None
        state["step"] += 1
        step, frozen_at = int(state["step"]), int(state["frozen_at"])
        if group["weight_decay"]:
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
        mean, variance = state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(gradient, 1 - first)
        if not frozen_at:
            variance.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        denominator = self.denominator(parameter, group)
        parameter.addcdiv_(mean, denominator, value=-group["lr"] / (1 - first**step))

    def denominator(self, parameter: Tensor, group: dict[str, Any]) -> Tensor:
        """Return the divisor of the momentum."""
        state = self.state[parameter]
        step = int(state["frozen_at"]) or int(state["step"])
        corrected: float = 1 - group["betas"][1] ** step
        root: Tensor = state["exp_avg_sq"].sqrt()
        return root.div_(math.sqrt(corrected)).add_(group["eps"])

    # End of the warm-up

    @property
    def is_frozen(self) -> bool:
        return bool(self.param_groups[0]["is_frozen"])

    def is_at_decision(self) -> bool:
        """Return True if ranks have to agree now whether the warm-up ends. All ranks return equal answers."""
        control = self.param_groups[0]
        if control["is_frozen"] or control["steps"] < max(1, control["lr_warmup_steps"]):
            return False
        if control["freeze_after"] is not None:
            return bool(control["steps"] >= control["freeze_after"])
        norms = control["variance_norms"]
        return len(norms) > _POINTS and control["steps"] % self._spacing() == 0

    def has_settled(self) -> bool:
        """Return True if this rank's variance allows the warm-up to end."""
        control = self.param_groups[0]
        if control["freeze_after"] is not None:
            return True
        norms = control["variance_norms"]
        return bool(norms[0] > 0 and norms[-1] / norms[0] >= _SETTLED)

    def freeze(self, parameters: Iterable[Tensor]) -> None:
        """Freeze the variance of these parameters."""
        self.param_groups[0].update(is_frozen=True, variance_norms=[])
        for it in parameters:
            state = self.state.get(it)
            if state:
                state["frozen_at"].copy_(state["step"])
                variance = state["exp_avg_sq"]
                variance.clamp_(min=float(variance.double().mean()) * _LEAST_SHARE)

    def _spacing(self) -> int:
        second: float = self.param_groups[0]["betas"][1]
        return max(1, round(1 / (1 - second) / _POINTS))

    def _watch_variance(self, control: dict[str, Any]) -> None:
        is_ruled = control["freeze_after"] is None and not control["is_frozen"]
        if not is_ruled or control["steps"] % self._spacing():
            return
        total = sum(self._corrected_norm(group) for group in self.param_groups)
        control["variance_norms"] = [*control["variance_norms"], float(total)][-(_POINTS + 1) :]

    def _corrected_norm(self, group: dict[str, Any]) -> float:
        second: float = group["betas"][1]
        states = [self.state[it] for it in group["params"] if self.state.get(it)]
        norms = [float(it["exp_avg_sq"].double().sum()) / (1 - second ** int(it["step"])) for it in states]
        return sum(norms)


def OneBitAdam(  # noqa: N802 - stands beside torch's classes
    params: Any,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    *,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    lr_warmup_steps: int = 0,
    freeze_after: int | None = None,
    backward_passes_per_step: int = 1,
    process_set: ProcessSet = global_process_set,
    **compression: Any,
) -> WrappedOptimizer:
    """Return a distributed Adam that compresses to one bit what leaves a host, once its variance has settled.

    It begins as AdamW with dense gradients. When the variance has settled it is frozen, and ranks exchange the momentum
    as hvd.Compression.onebit() does. Do not wrap it with hvd.DistributedOptimizer().

    Args:
        params: Parameters or parameter groups, as for torch.optim.AdamW.
        lr: The learning rate.
        betas: Decay of the momentum and of the variance.
        eps: Number that is added to the root of the variance.
        weight_decay: Decoupled weight decay.
        named_parameters: What model.named_parameters() returns. The names appear in messages and timelines. By default
            they are made from positions.
        lr_warmup_steps: Do not freeze the variance in this many first steps, in which the learning rate still rises.
        freeze_after: Freeze the variance after this many steps. By default the variance decides. Its norm, compared
            with that of 1 / (1 - betas[1]) steps before, has to be at least 0.96.
        backward_passes_per_step: Number of backward passes whose gradients are accumulated before they are reduced.
        process_set: The ranks that take part. By default all ranks of the job.
        **compression: Arguments of hvd.Compression.onebit(), namely scope, exclude, min_bytes and error_feedback.

    Returns:
        The optimizer, which reduces as hvd.DistributedOptimizer() does.

    Raises:
        ValueError: An argument is not valid.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = hvd.OneBitAdam(model.parameters(), lr=0.001)
    """
    from horovod.torch.compressing.momentum import distribute

    inner = _OneBitAdam(params, lr, betas, eps, weight_decay, lr_warmup_steps, freeze_after)
    return distribute(inner, named_parameters, compression, backward_passes_per_step, process_set)
