# SPDX-License-Identifier: Apache-2.0
"""Memory layouts: the engine moves runs of bytes, torch permutes strides (channels_last and its gradients)."""

from __future__ import annotations

import torch


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a dense tensor as a contiguous one, its dimensions permuted."""
    if tensor.is_contiguous():
        return tensor
    strides = tensor.stride()
    return tensor.permute(sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim)))


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements fill one run of memory, in whatever order."""
    return tensor.is_contiguous() or in_memory_order(tensor).is_contiguous()
