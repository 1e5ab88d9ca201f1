# SPDX-License-Identifier: Apache-2.0
"""Transfer of an optimizer's state from one rank to the others, without taking a step.

Dense tensors of a parameter's state are only described here; a broadcast sends their values. The rest (options,
counters, tensors inside lists) is sent by value. Parameters are identified by their position in the parameter groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from horovod.torch.adapter import ID_BY_DTYPE


@dataclass(frozen=True)
class Dense:
    """Description of a tensor to broadcast; `beside` is True if it is on its parameter's device instead of the CPU."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    beside: bool


@dataclass(frozen=True)
class Value:
    """Tensor sent by value, as a CPU tensor because device numbers differ between ranks."""

    tensor: torch.Tensor
    beside: bool


@dataclass(frozen=True)
class Layout:
    """Description of an optimizer: everything but the contents of dense tensors."""

    options: list[dict[str, Any]]  # one dictionary per parameter group
    group_sizes: list[int]
    by_parameter: dict[int, dict[str, Any]]  # state of each parameter, by the parameter's position
    shared: dict[Any, Any]  # state that belongs to no parameter


def describe(optimizer: Optimizer) -> Layout:
    """Return the description that other ranks need before the tensors are broadcast."""
    parameters = _parameters(optimizer)
    return Layout(
        options=[_options(group) for group in optimizer.param_groups],
        group_sizes=[len(group["params"]) for group in optimizer.param_groups],
        by_parameter={
            position: {key: _described(value, parameter.device) for key, value in optimizer.state[parameter].items()}
            for position, parameter in enumerate(parameters)
            if parameter in optimizer.state
        },
        shared={
            key: _packed(value, None) for key, value in optimizer.state.items() if not isinstance(key, torch.Tensor)
        },
    )


def adopt(optimizer: Optimizer, layout: Layout) -> None:
    """Take over the options, and make the state that the layout describes, with tensors not yet filled."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != layout.group_sizes:
        raise ValueError(
            f"broadcast_optimizer_state: the parameter groups hold {sizes} parameters here but "
            f"{layout.group_sizes} on the root; build the same model and optimizer on all ranks"
        )
    for group, options in zip(optimizer.param_groups, layout.options, strict=True):
        device = group["params"][0].device if group["params"] else torch.device("cpu")
        for key, value in options.items():
            group[key] = _kept(group.get(key), value, device)
    parameters = _parameters(optimizer)
    state = {position: optimizer.state.get(parameter, {}) for position, parameter in enumerate(parameters)}
    optimizer.state.clear()
    optimizer.state.update({key: _unpacked(value, torch.device("cpu")) for key, value in layout.shared.items()})
    for position, described in layout.by_parameter.items():
        optimizer.state[parameters[position]] = {
            key: _made(state[position].get(key), value, parameters[position]) for key, value in described.items()
        }


def tensors(optimizer: Optimizer, layout: Layout) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors to broadcast, with names and in an order that are equal on all ranks."""
    parameters = _parameters(optimizer)
    return [
        (f"optimizer.{position}.{key}", optimizer.state[parameters[position]][key])
        for position, described in layout.by_parameter.items()
        for key, value in described.items()
        if isinstance(value, Dense)
    ]


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _options(group: dict[str, Any]) -> dict[str, Any]:
    device = group["params"][0].device if group["params"] else None
    return {key: _packed(value, device) for key, value in group.items() if key != "params"}


def _described(value: Any, device: torch.device) -> Any:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return _packed(value, device)
    if value.dtype not in ID_BY_DTYPE and not value.is_complex():
        return _packed(value, device)
    return Dense(tuple(value.shape), value.dtype, _beside(value, device))


def _beside(tensor: torch.Tensor, device: torch.device | None) -> bool:
    return device is not None and tensor.device.type == device.type


def _packed(value: Any, device: torch.device | None) -> Any:
    if isinstance(value, torch.Tensor):
        return Value(value.detach().cpu(), _beside(value, device))
    return _mapped(value, lambda item: _packed(item, device))


def _unpacked(value: Any, device: torch.device) -> Any:
    if isinstance(value, Value):
        return value.tensor.to(device) if value.beside else value.tensor
    return _mapped(value, lambda item: _unpacked(item, device))


def _mapped(value: Any, change: Any) -> Any:
    """Apply `change` to the items of plain containers; return other values as they are."""
    if type(value) in (list, tuple):
        return type(value)(change(item) for item in value)
    if type(value) is dict:
        return {key: change(item) for key, item in value.items()}
    return value


def _kept(mine: Any, value: Any, device: torch.device) -> Any:
    """Copy a tensor option, such as a learning rate, in place, because compiled steps and CUDA graphs refer to it."""
    if isinstance(value, Value) and _fits(mine, value.tensor):
        mine.detach().copy_(value.tensor)
        return mine
    return _unpacked(value, device)


def _made(mine: Any, value: Any, parameter: torch.Tensor) -> Any:
    if not isinstance(value, Dense):
        return _unpacked(value, parameter.device)
    if _fits(mine, value):
        return mine
    device = parameter.device if value.beside else torch.device("cpu")
    if value.shape == tuple(parameter.shape):  # with the parameter's memory format, as an optimizer makes it
        return torch.zeros_like(parameter, dtype=value.dtype, device=device, requires_grad=False)
    return torch.zeros(value.shape, dtype=value.dtype, device=device)


def _fits(mine: Any, wanted: torch.Tensor | Dense) -> bool:
    return (
        isinstance(mine, torch.Tensor)
        and mine.layout == torch.strided
        and tuple(mine.shape) == tuple(wanted.shape)
        and mine.dtype == wanted.dtype
    )
