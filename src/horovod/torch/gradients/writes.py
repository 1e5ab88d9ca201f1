# SPDX-License-Identifier: Apache-2.0
"""Detection of gradients that the program changes in place while they are being reduced, by torch's version counter."""

from __future__ import annotations

from collections.abc import Iterable

import torch

_CHANGED = (
    "the gradient of {name!r} was changed in place (p.grad.mul_(...), clip_grad_norm_(...)) between backward() and "
    "step(), while it was being reduced: the result would differ between ranks. Call optimizer.synchronize() before "
    "you change gradients, then step() inside `with optimizer.skip_synchronize():`; or set "
    "HOROVOD_TORCH_WAIT_IN_BACKWARD=1, so that gradients are complete when backward() returns"
)


class Writes:
    """Gradients being reduced, each with the value of its version counter when its reduction began."""

    def __init__(self) -> None:
        self._watched: list[tuple[str, torch.Tensor, int]] = []

    def watch(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Record the version counters of these gradients; the engine's own writes do not change them."""
        self._watched += [(name, grad, grad._version) for name, grad in named if not grad.is_inference()]

    def clear(self) -> None:
        self._watched.clear()

    def changed(self) -> list[str]:
        """Return the gradients that the program has written to, and forget all. Call before copying results."""
        watched, self._watched = self._watched, []
        return [name for name, grad, version in watched if grad._version != version]


def refuse(changed: list[str]) -> None:
    """Raise ValueError if the list of changed gradients is not empty."""
    if changed:
        raise ValueError(_CHANGED.format(name=changed[0]))
