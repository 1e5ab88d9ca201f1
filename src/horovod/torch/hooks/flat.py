# SPDX-License-Identifier: Apache-2.0
"""Flat tensor of one bucket: gradients are copied into it once, and the hook's result is copied back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch

from horovod.torch.hooks.layout import BucketPlan

if TYPE_CHECKING:
    from horovod.torch.gradients.gradient import Gradient

Tensor = torch.Tensor


class FlatBucket:
    """Memory for the gradients of one bucket, reused in each step."""

    def __init__(self, index: int, plan: BucketPlan, members: Sequence[Gradient]) -> None:
        self.index = index
        self.plan = plan
        self._members = list(members)
        self._tensor: Tensor | None = None
        self._views: list[Tensor] = []

    def fill(self, present: Collection[Gradient]) -> Tensor:
        """Copy these gradients to their positions. Return the tensor, which has zeros in all other positions."""
        if self._tensor is None:
            first = self._members[0].parameter
            dtype = torch.float64 if first.dtype is torch.float64 else torch.float32
            self._tensor = torch.empty(self.plan.elements, dtype=dtype, device=first.device)
            self._views = self._views_of(self._tensor)
        views, grads = [], []
        with torch.no_grad():
            for gradient, view in zip(self._members, self._views, strict=True):
                grad = gradient.parameter.grad
                if gradient in present and grad is not None:
                    views.append(view)
                    grads.append(grad.detach())
                else:
                    view.zero_()
            torch._foreach_copy_(views, grads)
        return self._tensor

    def views(self) -> dict[str, Tensor]:
        """Return views of the filled tensor in the shapes of the parameters, by name."""
        return {it.name: view for it, view in zip(self._members, self._views, strict=True)}

    def scatter(self, result: Tensor, gradients: Collection[Gradient], grads: Sequence[Tensor]) -> None:
        """Copy the parts of a hook's result into `grads`, which are in the order of the bucket."""
        parts = [
            view
            for gradient, view in zip(self._members, self._views_of(result.detach()), strict=True)
            if gradient in gradients
        ]
        with torch.no_grad():
            torch._foreach_copy_(list(grads), parts)

    def drop(self) -> None:
        """Give up the memory, because operations in flight may still use it; the next step allocates other memory."""
        self._tensor = None
        self._views = []

    def _views_of(self, tensor: Tensor) -> list[Tensor]:
        parts = torch.split(tensor, list(self.plan.sizes))
        return [part.view(it.parameter.shape) for part, it in zip(parts, self._members, strict=True)]
