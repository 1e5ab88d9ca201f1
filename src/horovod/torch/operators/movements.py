# SPDX-License-Identifier: Apache-2.0
"""Operators that move rows: broadcast, allgather, alltoall.

A graph needs sizes. If torch may hold unknown sizes (torch._dynamo.config.capture_dynamic_output_shape_ops), ranks may
have different numbers of rows. Otherwise all ranks are assumed to have equal numbers, which is checked at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.process_sets import ProcessSet
from horovod.common.rules import Average
from horovod.torch import autograd
from horovod.torch.adapter import Tensor
from horovod.torch.operators.definition import (
    check_rows,
    define,
    dense,
    differentiate,
    empty_like,
    empty_with_rows,
    grad_name,
    graph_holds_unknown_sizes,
    in_place,
    keep_arguments,
    process_set,
)

# Broadcast

_BROADCAST = "int root_rank, str? name, int process_set"


def _run_broadcast(tensor: Tensor, root_rank: int, name: str | None, set_id: int) -> Tensor:
    return autograd.broadcast(dense(tensor), root_rank, name, process_set(set_id))


def _broadcast_backward(ctx: Any, grad: Tensor) -> Any:
    return _broadcast_gradient(grad, *ctx.arguments), None, None, None


_broadcast = define(
    "broadcast", f"(Tensor tensor, {_BROADCAST}) -> Tensor", _run_broadcast, lambda tensor, *_: empty_like(tensor)
)
_broadcast_gradient = define(
    "broadcast_backward",
    f"(Tensor grad, {_BROADCAST}) -> Tensor",
    lambda grad, root_rank, name, set_id: autograd.broadcast_gradient(
        dense(grad), root_rank, grad_name(name), process_set(set_id)
    ),
    lambda grad, *_: empty_like(grad),
)
differentiate("broadcast", keep_arguments, _broadcast_backward)


def broadcast(tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
    result: Tensor = _broadcast(tensor, root_rank, name, process_set.process_set_id)
    return result


def _run_broadcast_in_place(tensor: Tensor, root_rank: int, name: str | None, set_id: int) -> None:
    in_place(tensor, lambda it: autograd.broadcast_(it, root_rank, name, process_set(set_id)))


_broadcast_in_place = define(
    "broadcast_", f"(Tensor(a!) tensor, {_BROADCAST}) -> ()", _run_broadcast_in_place, lambda *_: None
)


def broadcast_(tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
    _broadcast_in_place(tensor, root_rank, name, process_set.process_set_id)
    return tensor


# Allgather. `rows` is the number of rows of the result, or None if it is unknown.


def _run_allgather(tensor: Tensor, rows: int | None, name: str | None, set_id: int) -> Tensor:
    return check_rows(autograd.allgather(dense(tensor), name, process_set(set_id)), rows, "allgather")


def _allgather_backward(ctx: Any, grad: Tensor) -> Any:
    _, name, set_id = ctx.arguments
    return _allgather_gradient(grad, ctx.rows[0], grad_name(name), set_id), None, None, None


gather_with_rows = define(
    "allgather",
    "(Tensor tensor, SymInt? rows, str? name, int process_set) -> Tensor",
    _run_allgather,
    lambda tensor, rows, *_: empty_with_rows(tensor, rows),
)
_allgather_gradient = define(
    "allgather_backward",
    "(Tensor grad, SymInt rows, str? name, int process_set) -> Tensor",
    lambda grad, rows, name, set_id: autograd.allgather_gradient(dense(grad), rows, name, process_set(set_id)).clone(),
    lambda grad, rows, *_: empty_with_rows(grad, rows),
)
differentiate("allgather", keep_arguments, _allgather_backward)


def allgather(tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
    rows = None if graph_holds_unknown_sizes() else tensor.shape[0] * (process_set.size() or 1)
    result: Tensor = gather_with_rows(tensor, rows, name, process_set.process_set_id)
    return result


def _run_grouped_allgather(
    tensors: Sequence[Tensor], rows: Sequence[int], name: str | None, set_id: int
) -> list[Tensor]:
    results = autograd.grouped_allgather([dense(tensor) for tensor in tensors], name, process_set(set_id))
    return [check_rows(result, count, "grouped_allgather") for result, count in zip(results, rows, strict=True)]


def _grouped_allgather_backward(ctx: Any, grads: Sequence[Tensor]) -> Any:
    _, name, set_id = ctx.arguments
    averages = torch.ops.horovod.grouped_allreduce(list(grads), grad_name(name), Average, 1.0, 1.0, set_id)
    index = process_set(set_id).rank() or 0
    parts = zip(averages, ctx.rows, strict=True)
    return [average.narrow(0, index * rows, rows) for average, rows in parts], None, None, None


gather_group_with_rows = define(
    "grouped_allgather",
    "(Tensor[] tensors, SymInt[] rows, str? name, int process_set) -> Tensor[]",
    _run_grouped_allgather,
    lambda tensors, rows, *_: [empty_with_rows(*pair) for pair in zip(tensors, rows, strict=True)],
)
differentiate("grouped_allgather", keep_arguments, _grouped_allgather_backward)


def grouped_allgather(tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet) -> list[Tensor]:
    """Gather a list of tensors; in a graph, all ranks must have equal numbers of rows."""
    rows = [tensor.shape[0] * (process_set.size() or 1) for tensor in tensors]
    return list(gather_group_with_rows(list(tensors), rows, name, process_set.process_set_id))


# Alltoall


def _run_alltoall(
    tensor: Tensor, splits: Tensor | None, rows: int | None, name: str | None, set_id: int
) -> tuple[Tensor, Tensor]:
    output, received = autograd.alltoall(dense(tensor), splits, name, process_set(set_id))
    return check_rows(output, rows, "alltoall"), received


def _alltoall_shapes(tensor: Tensor, splits: Tensor | None, rows: Any, name: str | None, set_id: int) -> Any:
    device = "cpu" if splits is None else splits.device
    received = torch.empty(process_set(set_id).size() or 1, dtype=torch.int32, device=device)
    return empty_with_rows(tensor, rows), received


def _keep_received(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    keep_arguments(ctx, inputs, output)
    ctx.save_for_backward(output[1])


def _alltoall_backward(ctx: Any, grad: Tensor, _: Any) -> Any:
    *_, name, set_id = ctx.arguments
    back = _alltoall_gradient(grad, ctx.saved_tensors[0], ctx.rows[0], grad_name(name), set_id)
    return back, None, None, None, None


_alltoall = define(
    "alltoall",
    "(Tensor tensor, Tensor? splits, SymInt? rows, str? name, int process_set) -> (Tensor, Tensor)",
    _run_alltoall,
    _alltoall_shapes,
)
_alltoall_gradient = define(
    "alltoall_backward",
    "(Tensor grad, Tensor received, SymInt rows, str? name, int process_set) -> Tensor",
    lambda grad, received, rows, name, set_id: autograd.alltoall_gradient(
        dense(grad), received, rows, name, process_set(set_id)
    ),
    lambda grad, received, rows, *_: empty_with_rows(grad, rows),
)
differentiate("alltoall", _keep_received, _alltoall_backward)


def alltoall(tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> tuple[Tensor, Tensor]:
    """Exchange rows. Splits make the sizes unknown, so torch breaks the graph here unless it may hold those."""
    rows = tensor.shape[0] if splits is None and not graph_holds_unknown_sizes() else None
    if splits is not None and not isinstance(splits, Tensor):
        splits = torch.tensor(splits, dtype=torch.int32)
    result: tuple[Tensor, Tensor] = _alltoall(tensor, splits, rows, name, process_set.process_set_id)
    return result
