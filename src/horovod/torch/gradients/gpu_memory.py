# SPDX-License-Identifier: Apache-2.0
"""GPU memory that is mapped into all ranks that share the GPU, as torch tensors."""

from __future__ import annotations

from typing import Any

import torch

from horovod._engine import Region
from horovod.common.context import default_context
from horovod.common.process_sets import ProcessSet

Tensor = torch.Tensor


class _Bytes:
    """Adapter that makes torch wrap a region without copying it; the tensor keeps the region alive."""

    def __init__(self, region: Region) -> None:
        self._region = region

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        place = (self._region.address, False)
        return {"shape": (self._region.nbytes,), "typestr": "|u1", "data": place, "strides": None, "version": 2}


def tensor_over(region: Region, device: torch.device) -> Tensor:
    """Return a tensor of bytes over a whole region."""
    with torch.cuda.device(device):
        return torch.as_tensor(_Bytes(region), device=device)


def allocate(process_set: ProcessSet, device: torch.device, nbytes: int) -> Tensor | None:
    """Return a tensor of `nbytes` uninitialized bytes that ranks share, or None without shared memory.

    None means that the ranks do not share the GPU, or do not know yet whether they do. Raise EngineError if there is
    not enough memory. The memory is freed after its last tensor is gone and this world has ended.
    """
    member = default_context.membership_of(process_set)
    region = member.world.allocate_region(member.id, device.index or 0, nbytes)
    return None if region is None else tensor_over(region, device)
