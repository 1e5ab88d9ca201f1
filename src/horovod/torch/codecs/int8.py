# SPDX-License-Identifier: Apache-2.0
"""Int8 codec in torch operations: a float32 scale for each block of values, then one int8 for each value."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from horovod.torch.codecs.byte_views import as_bytes, as_dtype

_STEPS = 127  # quantisation steps between 0 and the largest magnitude


@dataclass(frozen=True)
class Int8Codec:
    """Codec for messages of ceil(count / block) scales and count values."""

    block: int

    def blocks(self, count: int) -> int:
        """Return the number of scales of a message."""
        return -(-count // self.block)

    def wire_bytes(self, count: int) -> int:
        """Return the length of a message."""
        return 4 * self.blocks(count) + count

    def encode(self, p: torch.Tensor, left: torch.Tensor | None) -> torch.Tensor:
        """Return the message for `p`."""
        return self.encode_rows(p.view(1, -1), None if left is None else left.view(1, -1))[0]

    def encode_rows(self, p: torch.Tensor, left: torch.Tensor | None) -> torch.Tensor:
        """Return one message for each row of `p` as the rows of a uint8 tensor."""
        rows, count = p.shape
        blocks = self.blocks(count)
        wires = torch.empty(rows, self.wire_bytes(count), dtype=torch.uint8, device=p.device)
        scales = torch.empty(rows, blocks, dtype=torch.float32, device=p.device)
        quanta = wires[:, 4 * blocks :].view(torch.int8)
        # The last block may be shorter than the others, so it is encoded alone.
        whole = count // self.block * self.block
        for first, last, width in ((0, whole, self.block), (whole, count, count - whole)):
            if first == last:
                continue
            values = p[:, first:last].view(rows, -1, width)
            scale, quantum = _quantise(values)
            if left is not None:
                torch.sub(values, quantum * scale, out=left[:, first:last].view(rows, -1, width))
            scales[:, first // self.block : self.blocks(last)] = scale[..., 0]
            quanta[:, first:last] = quantum.flatten(1)
        wires[:, : 4 * blocks] = as_bytes(scales)
        return wires

    def decode(self, wire: torch.Tensor, count: int, factor: float, out: torch.Tensor) -> None:
        """Write factor * the values of a message to `out`."""
        self.decode_sum(wire.view(1, -1), count, factor, out)

    def decode_sum(self, wires: torch.Tensor, count: int, factor: float, out: torch.Tensor) -> None:
        """Write factor * the sum of the messages in the rows of `wires` to `out`."""
        self._values(wires[0], count, out)
        part = torch.empty_like(out) if len(wires) > 1 else out
        for wire in wires[1:]:
            self._values(wire, count, part)
            out.add_(part)
        if factor != 1:
            out.mul_(factor)

    def decode_rows(self, wires: torch.Tensor, out: torch.Tensor) -> None:
        """Write the values of the message in each row of `wires` to the same row of `out`."""
        self._values(wires, out.shape[-1], out)

    def _values(self, wires: torch.Tensor, count: int, out: torch.Tensor) -> None:
        blocks = self.blocks(count)
        scales = as_dtype(wires[..., : 4 * blocks], torch.float32)
        quanta = wires[..., 4 * blocks :].view(torch.int8)
        whole = count // self.block
        if whole:
            end = whole * self.block
            shape = (*out.shape[:-1], whole, self.block)
            torch.mul(quanta[..., :end].view(shape), scales[..., :whole, None], out=out[..., :end].view(shape))
        if whole < blocks:
            end = whole * self.block
            torch.mul(quanta[..., end:], scales[..., whole:], out=out[..., end:])


def _quantise(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scale of each block (the last dimension) and each value as a whole number of scales, in float32."""
    lowest, highest = torch.aminmax(values, dim=-1, keepdim=True)
    largest = torch.maximum(highest, -lowest)  # NaN if the block has one
    # Divide by a tensor, because torch multiplies by the reciprocal of a Python number, which rounds differently.
    steps = torch.full_like(largest, _STEPS)
    inverse = steps / largest
    is_bad = ~torch.isfinite(largest)
    is_zero = torch.isinf(inverse)  # True if the block is zero, or too small for a scale
    scale = (largest / steps).masked_fill_(is_zero, 0.0).masked_fill_(is_bad, math.nan)
    quantum = (values * inverse.masked_fill_(is_zero | is_bad, 0.0)).round_().clamp_(-_STEPS, _STEPS)
    return scale, quantum.nan_to_num_(0.0)  # infinity * 0 gives NaN
