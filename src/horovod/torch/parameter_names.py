# SPDX-License-Identifier: Apache-2.0
"""Names of an optimizer's parameters, by which ranks match gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

Named = list[tuple[str, torch.Tensor]]


def unnamed(group: int, index: int) -> str:
    """Return the name of an unnamed parameter: its position in the optimizer, which is equal on all ranks."""
    return f"allreduce.noname.{group}.{index}"


def name_parameters(optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Any]] | None) -> Named:
    """Return (name, parameter) for every parameter of the optimizer; raise ValueError if the names do not fit."""
    mine = [
        (unnamed(number, index), parameter)
        for number, group in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(group["params"])
    ]
    if named_parameters is None:
        return mine
    given = list(named_parameters)
    if not given:
        return mine
    if any(not isinstance(pair, tuple) for pair in given):
        raise ValueError("named_parameters must be a sequence of (name, parameter), usually model.named_parameters()")
    names = [name for name, _ in given]
    duplicates = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if duplicates:
        raise ValueError(f"named_parameters contains names twice: {', '.join(duplicates)}")
    name_of = {parameter: name for name, parameter in given}
    missing = [place for place, parameter in mine if parameter not in name_of]
    if missing:
        raise ValueError(
            f"named_parameters does not name {len(missing)} of the optimizer's parameters; the first without a name is "
            f"{missing[0]} (parameter group and index)"
        )
    return [(name_of[parameter], parameter) for _, parameter in mine]
