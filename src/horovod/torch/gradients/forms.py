# SPDX-License-Identifier: Apache-2.0
"""A gradient in the form that all ranks have agreed on, dense or sparse; zeros where a rank has none."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def make_gradient(parameter: Tensor, sparse: bool) -> None:
    """Zeros for a parameter that has no gradient."""
    if parameter.grad is None:
        parameter.grad = _no_rows(parameter) if sparse else torch.zeros_like(parameter, requires_grad=False)


def put_in_form(parameter: Tensor, sparse: bool) -> bool:
    """Convert a gradient that is in the other form. Whether it was."""
    grad = parameter.grad
    if grad is None or grad.is_sparse == sparse:
        return False
    with torch.no_grad():
        parameter.grad = grad.to_sparse(1) if sparse else grad.to_dense()
    return True


def _no_rows(parameter: Tensor) -> Tensor:
    """As torch.nn.Embedding makes sparse gradients: whole rows, here none."""
    indices = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
    values = parameter.detach().new_empty((0, *parameter.shape[1:]))
    return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)
