# SPDX-License-Identifier: Apache-2.0
"""Views of parts of messages, which are uint8 tensors, as tensors of other dtypes."""

from __future__ import annotations

import torch


def as_bytes(values: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor as uint8, without a copy."""
    return values.view(torch.uint8)


def as_dtype(part: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return bytes of a message as values of another dtype; rows of a 2-d part remain rows.

    The part is copied only if torch cannot view it in place, because its address or its rows are not aligned.
    """
    size = dtype.itemsize
    offsets = (part.storage_offset(), part.data_ptr(), *part.stride()[:-1])
    if part.stride(-1) != 1 or any(offset % size for offset in offsets):
        part = part.clone(memory_format=torch.contiguous_format)
    return part.view(dtype)
