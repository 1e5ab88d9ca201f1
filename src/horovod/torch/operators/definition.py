# SPDX-License-Identifier: Apache-2.0
"""Definition of operators: what they run, and what the compiler needs to know about their shapes and gradients.

Operators accept only tensors, numbers and text, so a process set is passed as its id. The compiler may pass tensors
with any strides, so inputs are made contiguous here instead of being refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod.common.context import default_context
from horovod.common.process_sets import ProcessSet
from horovod.torch.adapter import Tensor


def define(name: str, schema: str, run: Callable[..., Any], shapes: Callable[..., Any]) -> Any:
    """Define an operator `horovod::name`. `shapes` makes empty tensors with the shapes that `run` returns."""
    full_name = f"horovod::{name}"
    torch.library.define(full_name, schema)
    # torch.library.custom_op would make each call three times as expensive.
    torch.library.impl(full_name, "CompositeExplicitAutograd", run)
    # The operators handle lazy bits themselves. torch would do so too, but fails where a result is written in place.
    for bit in ("Negative", "Conjugate"):
        torch.library.impl(full_name, bit, torch.library.fallthrough_kernel)
    torch.library.register_fake(full_name, shapes)
    return getattr(torch.ops.horovod, name).default


def differentiate(name: str, keep: Callable[..., Any], backward: Callable[..., Any]) -> None:
    torch.library.register_autograd(f"horovod::{name}", backward, setup_context=keep)


def process_set(set_id: int) -> ProcessSet:
    return default_context.registered_sets.with_id(set_id)


def dense(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous()


def in_place(tensor: Tensor, operation: Callable[[Tensor], Any]) -> None:
    contiguous = dense(tensor)
    operation(contiguous)
    if contiguous.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(contiguous)


def empty_like(tensor: Tensor) -> Tensor:
    return tensor.new_empty(tensor.shape)


def empty_with_rows(tensor: Tensor, rows: Any) -> Tensor:
    """Return an empty tensor with this number of rows; None is a number that is only known when the graph runs."""
    if rows is None:
        rows = torch.library.get_ctx().new_dynamic_size()
    return tensor.new_empty((rows, *tensor.shape[1:]))


def check_rows(result: Tensor, rows: int | None, operation: str) -> Tensor:
    """Raise ValueError if a result has another number of rows than the graph was compiled for; None allows any."""
    if rows is not None and result.shape[0] != rows:
        raise ValueError(
            f"hvd.{operation} in a compiled graph has {result.shape[0]} rows instead of {rows}, because the ranks' "
            "tensors have different numbers of rows; set torch._dynamo.config.capture_dynamic_output_shape_ops = True"
        )
    return result


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def graph_holds_unknown_sizes() -> bool:
    return bool(torch._dynamo.config.capture_dynamic_output_shape_ops)


def keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep what a backward pass needs of a forward pass: its arguments and numbers of rows, but no input tensor."""
    first = inputs[0]
    tensors: Sequence[Tensor] = first if isinstance(first, (list, tuple)) else [first]
    ctx.rows = [tensor.shape[0] if tensor.dim() else 1 for tensor in tensors]
    ctx.arguments = inputs[1:]


def grad_name(name: str | None) -> str | None:
    return f"{name}.grad" if name else None
