# SPDX-License-Identifier: Apache-2.0
"""Bucket of DDP during a hook's exchange, and the tensors that a hook keeps for the bucket between steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket  # also in torch.distributed, where type checkers cannot see it

# Prefer all_gather_single, the newer name, because all_gather_into_tensor warns if both exist.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass
class Memory:
    """Tensors that outlive a step: residuals and factors of one bucket, by name.

    Args:
        shapes: Shapes of the bucket's parameters, in its order.
        parameters: Addresses of the parameters' objects in this process; empty for memory from a state_dict.
    """

    shapes: tuple[tuple[int, ...], ...]
    parameters: tuple[int, ...] = ()
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def has_layout_of(self, other: Memory) -> bool:
        """Return True if both describe a bucket of the same parameters, as far as that is known."""
        return self.shapes == other.shapes and self.parameters in ((), other.parameters)


class Bucket:
    """Gradients of one bucket: the buffer that DDP gets back, their sum with the residual, and the memory."""

    def __init__(self, bucket: GradBucket, memory: Memory, group: dist.ProcessGroup | None) -> None:
        self.buffer: torch.Tensor = bucket.buffer()
        self.index = bucket.index()
        self.memory = memory
        self.group = group
        if self.buffer.dtype not in _DTYPES:
            raise TypeError(
                f"Compression supports gradients of float32, float16 and bfloat16, not {self.buffer.dtype} (bucket "
                f"{self.index}); use DDP without a hook, or convert the model"
            )

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return int(dist.get_world_size(self.group))

    @property
    def count(self) -> int:
        """Return the number of values."""
        return self.buffer.numel()

    @property
    def device(self) -> torch.device:
        return self.buffer.device

    def gather(self, wire: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Start to gather messages of one length; return the tensor [ranks, bytes] for them, and the collective."""
        wires = torch.empty(self.size * wire.numel(), dtype=torch.uint8, device=self.device)
        return wires.view(self.size, -1), _all_gather(wires, wire, group=self.group, async_op=True)

    def corrected(self, padded: int | None = None) -> torch.Tensor:
        """Return the gradients plus the residual as a new float32 tensor, with zeros up to `padded` values."""
        count = self.count
        result = torch.empty(padded or count, dtype=torch.float32, device=self.device)
        residual = self.remembered("residual", count)
        if residual is None:
            result[:count] = self.buffer
        else:
            torch.add(self.buffer, residual, out=result[:count])
        result[count:] = 0.0
        return result

    def remembered(self, name: str, count: int) -> torch.Tensor | None:
        """Return a tensor of the memory on the bucket's device, or None if there is none of this length."""
        found = self.memory.tensors.get(name)
        if found is None or found.numel() != count:
            return None
        if found.device != self.device:
            found = self.memory.tensors[name] = found.to(self.device)
        return found

    def finish(self, result: torch.Tensor, **memory: torch.Tensor) -> None:
        """Put the averaged gradients into DDP's buffer, and remember tensors for the next step.

        If the result has a NaN or infinity, make the whole bucket NaN and keep the memory as it was. All ranks have
        equal results, so they decide alike. On a GPU, the host does not wait for the decision.
        """
        is_finite = _is_finite(result)
        if result.is_cuda:
            self.buffer.copy_(torch.where(is_finite, result, math.nan))
            for name, candidate in memory.items():
                old = self.remembered(name, candidate.numel())
                self.memory.tensors[name] = torch.where(is_finite, candidate, 0.0 if old is None else old)
        elif bool(is_finite):
            self.buffer.copy_(result)
            self.memory.tensors.update(memory)
        else:
            self.buffer.fill_(math.nan)


def memory_of(bucket: GradBucket) -> Memory:
    """Return empty memory for a bucket."""
    parameters: list[Any] = bucket.parameters()
    return Memory(tuple(tuple(it.shape) for it in parameters), tuple(map(id, parameters)))


def _is_finite(values: torch.Tensor) -> torch.Tensor:
    lowest, highest = torch.aminmax(values)
    return torch.isfinite(lowest) & torch.isfinite(highest)
