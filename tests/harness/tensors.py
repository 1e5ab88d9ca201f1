# SPDX-License-Identifier: Apache-2.0
"""Conversion of NumPy arrays to torch tensors and back, bit by bit, for every dtype that both have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from harness.arrays import DTYPES, Array, check_equal, dtype_of, mine

# Older versions of torch lack some dtypes.
TORCH_DTYPES = tuple(name for name in DTYPES if hasattr(torch, name))


def to_torch(array: Array) -> torch.Tensor:
    """Return a copy of the array as a tensor."""
    dtype = getattr(torch, array.dtype.name)
    if not array.size:
        return torch.empty(array.shape, dtype=dtype)
    return torch.from_numpy(np.frombuffer(bytearray(array.tobytes()), np.uint8)).view(dtype).reshape(array.shape)


def to_numpy(tensor: torch.Tensor) -> Array:
    name = str(tensor.dtype).removeprefix("torch.")
    if not tensor.numel():
        return np.empty(tuple(tensor.shape), dtype_of(name))
    bits = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return bits.view(dtype_of(name)).reshape(tuple(tensor.shape))


def my_tensor(arrays: Sequence[Array]) -> torch.Tensor:
    return to_torch(mine(arrays))


def check_tensor(result: torch.Tensor, expected: Array | torch.Tensor) -> str:
    """Compare dtype, shape and values; return a digest of the bits."""
    assert isinstance(result, torch.Tensor), type(result)
    return check_equal(to_numpy(result), to_numpy(expected) if isinstance(expected, torch.Tensor) else expected)
