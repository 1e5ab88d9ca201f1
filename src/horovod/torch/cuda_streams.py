# SPDX-License-Identifier: Apache-2.0
"""Copies between device and host on separate streams, with all uses of torch.cuda that staging needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from horovod.torch.adapter import Tensor


class Event(Protocol):
    """Event on the device for which the host can wait."""

    def synchronize(self) -> Any: ...


class Streams(Protocol):
    """Interface that staging needs; tests implement it without a device."""

    def host_memory(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor: ...

    def to_host(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Event]:
        """Start to copy tensors after the work now on the caller's stream. The event completes when the copies have."""

    def to_device(self, results: Sequence[Tensor], targets: Sequence[Tensor] | None, device: Any) -> list[Tensor]:
        """Start to copy host tensors into targets or new tensors; make the caller's stream wait for the copies."""


class CudaStreams:
    """Copies on two streams for each device, one for each direction, so that both directions run concurrently."""

    def __init__(self) -> None:
        self._streams: dict[tuple[torch.device, str], torch.cuda.Stream] = {}

    def _stream(self, device: torch.device, direction: str) -> torch.cuda.Stream:
        key = (device, direction)
        if key not in self._streams:
            self._streams[key] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return self._streams[key]

    def host_memory(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        # No pool is needed here, because torch keeps pinned memory in a pool and tracks which copies still use it.
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def to_host(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Event]:
        device = tensors[0].device
        down = self._stream(device, "down")
        down.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(down):
            copies = []
            for tensor in tensors:
                copies.append(self.host_memory(tensor.shape, tensor.dtype).copy_(tensor.detach(), non_blocking=True))
                tensor.record_stream(down)  # its memory must not be reused before the copy is complete
            return copies, down.record_event()

    def to_device(
        self, results: Sequence[Tensor], targets: Sequence[Tensor] | None, device: torch.device
    ) -> list[Tensor]:
        up = self._stream(device, "up")
        reader = torch.cuda.current_stream(device)
        with torch.cuda.stream(up):
            if targets is None:
                # Allocate on the copy stream, so that no pending work of another stream uses this memory.
                lifted = [torch.empty(result.shape, dtype=result.dtype, device=device) for result in results]
            else:
                lifted = list(targets)
            for tensor, result in zip(lifted, results, strict=True):
                tensor.detach().copy_(result, non_blocking=True)
                tensor.record_stream(reader if targets is None else up)
        reader.wait_stream(up)
        return lifted
