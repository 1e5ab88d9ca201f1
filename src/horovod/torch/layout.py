# SPDX-License-Identifier: Apache-2.0
"""Memory layouts: torch permutes strides (channels_last and its gradients), the engine needs contiguous memory."""

from __future__ import annotations

import torch


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a dense tensor with its dimensions permuted so that it is contiguous."""
    if tensor.is_contiguous():
        return tensor
    strides = tensor.stride()
    return tensor.permute(sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim)))


def is_dense(tensor: torch.Tensor) -> bool:
    """Return True if a tensor's elements fill one contiguous block of memory, in any order of dimensions."""
    return tensor.is_contiguous() or in_memory_order(tensor).is_contiguous()
