# SPDX-License-Identifier: Apache-2.0
"""The state of an optimizer that has not stepped yet: a step with zero gradients makes it, and leaves nothing else.

Scripts written for Horovod expect it after broadcast_optimizer_state: they look at it, or load into it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from horovod.torch.gradients.forms import make_gradient
from horovod.torch.wrapping import WrappedOptimizer

Tensor = torch.Tensor
_log = logging.getLogger("horovod")


def is_fresh(optimizer: Optimizer) -> bool:
    return not any(optimizer.state.values())


def make_state(optimizer: Optimizer, model: torch.nn.Module | None) -> bool:
    """Let a fresh optimizer make its state: parameters and options stay, and counters begin at the start.

    False, and nothing is changed, if its step() fails with zero gradients: one that needs a closure, for example.
    """
    trained = [it for group in optimizer.param_groups for it in group["params"] if it.requires_grad]
    values = [it.detach().clone() for it in trained]
    grads = [it.grad for it in trained]
    options = [_copied(group) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        if "weight_decay" in group:
            group["weight_decay"] = 0.0  # it would go into the averages of gradients
    for parameter in trained:
        parameter.grad = None
    make_zero_gradients(optimizer, model)
    try:
        with torch.no_grad():
            _own_step(optimizer)(optimizer)
        _wind_back(optimizer)
    except Exception:
        _log.debug(
            "%s.step() fails with zero gradients: its state is left empty", type(optimizer).__name__, exc_info=True
        )
        optimizer.state.clear()
        return False
    finally:
        for parameter, value, grad in zip(trained, values, grads, strict=True):
            parameter.detach().copy_(value)
            parameter.grad = grad
        for group, kept in zip(optimizer.param_groups, options, strict=True):
            group.update(kept)
    return True


def make_zero_gradients(optimizer: Optimizer, model: torch.nn.Module | None) -> None:
    """For parameters that have no gradient."""
    embeddings = [] if model is None else [it for it in model.modules() if getattr(it, "sparse", False) is True]
    rows = {parameter for module in embeddings for parameter in module.parameters(recurse=False)}
    wants_rows = isinstance(optimizer, torch.optim.SparseAdam)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                make_gradient(parameter, sparse=wants_rows or parameter in rows)


def _copied(group: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.clone() if isinstance(value, Tensor) else value for key, value in group.items() if key != "params"
    }


def _own_step(optimizer: Optimizer) -> Callable[[Optimizer], Any]:
    """The step() of the user's class, past ours, a scheduler's counter and the user's hooks."""
    classes = [cls for cls in type(optimizer).__mro__ if not issubclass(cls, WrappedOptimizer)]
    step: Any = next(vars(cls)["step"] for cls in classes if "step" in vars(cls))
    own: Callable[[Optimizer], Any] = step.__wrapped__ if getattr(step, "hooked", False) else step
    return own


def _wind_back(optimizer: Optimizer) -> None:
    """What counts steps, or depends on their number, as before the first: the next step is the first one."""
    for group in optimizer.param_groups:
        at_start = {"step": 0, "mu_product": 1, "eta": group.get("lr")}
        for state in (optimizer.state[it] for it in group["params"] if it in optimizer.state):
            for key, start in at_start.items():
                if isinstance(state.get(key), Tensor):
                    state[key].fill_(start)
                elif key in state and start is not None:
                    state[key] = type(state[key])(start)
