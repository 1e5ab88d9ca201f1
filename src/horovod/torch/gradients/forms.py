# SPDX-License-Identifier: Apache-2.0
"""Conversion of a gradient to the form, dense or sparse, that ranks have agreed on; zeros if there is no gradient."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def make_gradient(parameter: Tensor, sparse: bool) -> None:
    """Give a parameter without a gradient one of zeros."""
    if parameter.grad is None:
        parameter.grad = _no_rows(parameter) if sparse else torch.zeros_like(parameter, requires_grad=False)


def put_in_form(parameter: Tensor, sparse: bool) -> bool:
    """Convert a gradient that has the other form. Return True if it was converted."""
    grad = parameter.grad
    if grad is None or grad.is_sparse == sparse:
        return False
    with torch.no_grad():
        parameter.grad = grad.to_sparse(1) if sparse else grad.to_dense()
    return True


def _no_rows(parameter: Tensor) -> Tensor:
    """Return a sparse gradient without rows; like those of torch.nn.Embedding, it has whole rows as values."""
    indices = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
    values = parameter.detach().new_empty((0, *parameter.shape[1:]))
    return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)
