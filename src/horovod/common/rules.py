# SPDX-License-Identifier: Apache-2.0
"""Rules of the collectives as pure functions: averaging, factors, splits, shares. They need no engine and no tensor."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TypeAlias

from horovod._engine import ReduceOp
from horovod.common.dtypes import BOOL, FLOATING, NAME_BY_ID
from horovod.common.exceptions import HorovodDeprecationWarning, HorovodInternalError
from horovod.common.settings_values import is_unicode, shown

# Use the engine's numbers for Horovod's reduce operations. They are integers, because native calls read these fastest.
Average, Sum, Adasum, Min, Max, Product = map(int, ReduceOp)
_OPS = frozenset(map(int, ReduceOp))
OP_NAMES = tuple(op.name.capitalize() for op in ReduceOp)


# Reduction for the engine: op, prescale, postscale. It is a tuple, because every small operation makes one.
Reduction: TypeAlias = tuple[int, float, float]
PLAIN_SUM: Reduction = (Sum, 1.0, 1.0)


def resolve_op(op: int | None, average: bool | None, stacklevel: int = 3) -> int:
    """Return the reduce operation that a call asks for, the deprecated argument `average` included.

    Args:
        op: The operation, or None.
        average: True means hvd.Average, False means hvd.Sum. None if the caller does not use it.
        stacklevel: As in warnings.warn(), for the warning that `average` is deprecated.

    Returns:
        The operation. hvd.Average if both arguments are None.

    Raises:
        ValueError: Both arguments are given.

    Example:
        >>> op = hvd.handle_average_backwards_compatibility(hvd.Sum, None)
        >>> op == hvd.Sum  # on 2 ranks: True
    """
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError("Pass either op or the older average argument, not both")
    # Stack level 3 is the line that calls the framework API's function, unless another function wraps that function.
    warnings.warn("average is deprecated: use op=Average or op=Sum", HorovodDeprecationWarning, stacklevel=stacklevel)
    return Average if average else Sum


def reduction(op: int, prescale: float, postscale: float, dtype: int, set_id: int) -> Reduction:
    """Check an allreduce and return its reduction.

    Average is not replaced by a factor here, because the engine divides by the size of the set when the operation runs.
    """
    if dtype == BOOL and (op == Average or prescale != 1.0 or postscale != 1.0):
        raise ValueError(
            "Averaging or scaling bool is not supported; use op=hvd.Max (any) or hvd.Min (all), or convert the array"
        )
    if op == Adasum and set_id != 0:
        raise NotImplementedError("Adasum works only on the global process set")
    if op == Adasum and dtype not in FLOATING:
        raise ValueError(f"Adasum needs floating-point values, not {NAME_BY_ID[dtype]}: convert the tensor first")
    if op not in _OPS:
        raise ValueError(f"op={op!r} is not a reduce operation; use {', '.join('hvd.' + name for name in OP_NAMES)}")
    return op, prescale, postscale


def scatter_reduction(op: int, prescale: float, postscale: float, dtype: int, set_id: int) -> Reduction:
    """Check a reducescatter, which supports only Average and Sum, and return its reduction."""
    if op not in (Average, Sum):
        name = OP_NAMES[op] if op in range(len(OP_NAMES)) else repr(op)
        raise HorovodInternalError(f"reducescatter supports the operations Average and Sum, not {name}")
    return reduction(op, prescale, postscale, dtype, set_id)


def rows_of(index: int, rows: int, size: int) -> int:
    """Return the rows that a member gets from a reducescatter. The first `rows % size` members get one more."""
    return rows // size + (index < rows % size)


def scattered_shape(shape: tuple[int, ...], index: int, size: int) -> tuple[int, ...]:
    """Return the shape of a member's share of a reducescatter."""
    if not shape:
        raise ValueError("reducescatter needs a tensor with at least one dimension, not a scalar")
    return (rows_of(index, shape[0], size), *shape[1:])


def check_gather(shape: tuple[int, ...], operation: str) -> None:
    if not shape:
        raise ValueError(f"{operation} needs a tensor with at least one dimension, not a scalar")


def alltoall_splits(shape: tuple[int, ...], splits: Sequence[int] | None, size: int) -> Sequence[int]:
    """Return the number of rows for each member. None stands for equal shares."""
    check_gather(shape, "alltoall")
    rows = shape[0]
    if splits is None:
        if rows % size:
            raise ValueError(
                f"alltoall without splits needs rows that divide evenly, but {rows} rows do not among {size} ranks"
            )
        return [rows // size] * size
    if len(splits) != size:
        raise ValueError(f"alltoall needs one split for each of the {size} ranks, not {len(splits)}")
    if any(split < 0 for split in splits):
        raise ValueError(f"alltoall splits cannot be negative: {list(splits)}")
    if sum(splits) > rows:
        raise ValueError(f"alltoall splits sum to {sum(splits)}, more than the tensor's {rows} rows")
    return splits


def check_name(name: str) -> str:
    """Return a tensor's name if the engine accepts it.

    Raise ValueError for a text that cannot be sent to other ranks.
    """
    if "\0" in name or not (name.isascii() or is_unicode(name)):
        raise ValueError(f"A tensor's name must be a string without NUL or lone surrogates, not {shown(name)}")
    return name


def check_root(root_rank: int, ranks: tuple[int, ...]) -> int:
    """Return the root of a broadcast, which is always a global rank. Raise ValueError if it is not in the set."""
    if root_rank not in ranks:
        raise ValueError(f"broadcast: root rank {root_rank} is not among the ranks of the process set, {list(ranks)}")
    return int(root_rank)
