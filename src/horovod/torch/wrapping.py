# SPDX-License-Identifier: Apache-2.0
"""Make an optimizer an instance of a new class: ours on top of the user's."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

Mixin = TypeVar("Mixin", bound=torch.optim.Optimizer)


def wrap(optimizer: torch.optim.Optimizer, mixin: type[Mixin]) -> Mixin:
    """An optimizer with the same parameters, state and options, of a class with the same name: isinstance still holds.

    No __init__ runs, so that classes with any arguments can be wrapped.
    """
    if isinstance(optimizer, mixin):
        raise ValueError("This optimizer is already a hvd.DistributedOptimizer; wrap it only once")
    cls = optimizer.__class__
    made: Any = type(cls.__name__, (mixin, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    wrapped: Mixin = made.__new__(made)
    # A scheduler made for the original has put its own step() there, which would lead past ours.
    wrapped.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    return wrapped
