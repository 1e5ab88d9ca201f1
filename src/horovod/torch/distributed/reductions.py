# SPDX-License-Identifier: Apache-2.0
"""Conversion of torch's reduce operations to the engine's."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch.distributed import ReduceOp

from horovod.common.rules import PLAIN_SUM, Average, Max, Min, Product, Reduction, Sum

Tensor = torch.Tensor

_PLAIN: dict[Any, Reduction] = {
    ReduceOp.SUM: PLAIN_SUM,
    ReduceOp.AVG: (Average, 1.0, 1.0),
    ReduceOp.MIN: (Min, 1.0, 1.0),
    ReduceOp.MAX: (Max, 1.0, 1.0),
    ReduceOp.PRODUCT: (Product, 1.0, 1.0),
}
# For bool a sum is "any" and a product is "all".
_ANY, _ALL = (Max, 1.0, 1.0), (Min, 1.0, 1.0)
_BOOL: dict[Any, Reduction] = {
    ReduceOp.SUM: _ANY,
    ReduceOp.MAX: _ANY,
    ReduceOp.BOR: _ANY,
    ReduceOp.PRODUCT: _ALL,
    ReduceOp.MIN: _ALL,
    ReduceOp.BAND: _ALL,
}
_BITWISE: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


def kind_of(op: Any) -> Any:
    """Return the plain enumeration value of a ReduceOp, which may carry a factor."""
    return getattr(op, "op", op)


def engine_reduction(op: Any, dtype: torch.dtype) -> Reduction | None:
    """Return the engine's reduction, or None for a bitwise operation, which the ranks compute themselves."""
    kind = kind_of(op)
    if dtype == torch.bool:
        found = _BOOL.get(kind)
        if found is None and kind != ReduceOp.BXOR:
            raise ValueError(f"{kind} is not defined for torch.bool; use SUM (any) or PRODUCT (all)")
        return found
    if dtype.is_complex and kind not in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PREMUL_SUM):
        raise ValueError(f"{kind} is not defined for {dtype}; use SUM or AVG")
    if kind == ReduceOp.PREMUL_SUM:
        return Sum, float(op.__getstate__()[1]), 1.0
    if kind in _BITWISE:
        if dtype.is_floating_point:
            raise ValueError(f"{kind} is not defined for {dtype}; use a type of integers")
        return None
    return _PLAIN[kind]


def bitwise(op: Any, rows: Tensor) -> Tensor:
    """Return the bitwise operation over the first dimension."""
    return reduce(_BITWISE[kind_of(op)], rows.unbind(0))
