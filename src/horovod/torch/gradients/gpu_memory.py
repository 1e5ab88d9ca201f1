# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU that all ranks which share it map, as torch's tensors."""

from __future__ import annotations

from typing import Any

import torch

from horovod._engine import Region
from horovod.common.context import default_context
from horovod.common.process_sets import ProcessSet

Tensor = torch.Tensor


class _Bytes:
    """A region as torch takes memory that others have made; the tensor keeps it."""

    def __init__(self, region: Region) -> None:
        self._region = region

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        place = (self._region.address, False)
        return {"shape": (self._region.nbytes,), "typestr": "|u1", "data": place, "strides": None, "version": 2}


def tensor_over(region: Region, device: torch.device) -> Tensor:
    """All bytes of a region."""
    with torch.cuda.device(device):
        return torch.as_tensor(_Bytes(region), device=device)


def allocate(process_set: ProcessSet, device: torch.device, nbytes: int) -> Tensor | None:
    """So many bytes, with anything in them. None: the ranks do not share the GPU, or are not known to yet.

    EngineError if there is no room. The memory goes with its last tensor, once this world has ended.
    """
    member = default_context.membership_of(process_set)
    region = member.world.allocate_region(member.id, device.index or 0, nbytes)
    return None if region is None else tensor_over(region, device)
