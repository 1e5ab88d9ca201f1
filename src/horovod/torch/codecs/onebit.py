# SPDX-License-Identifier: Apache-2.0
"""One-bit codec in torch operations: the mean magnitude of each block of 4,096 values, then a sign bit per value."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from horovod.common.compression_methods import ONE_BIT_BLOCK
from horovod.torch.codecs.byte_views import as_bytes, as_dtype


@dataclass(frozen=True)
class OneBitCodec:
    """Codec for messages of ceil(count / 4096) means and ceil(count / 8) bytes of signs."""

    def blocks(self, count: int) -> int:
        """Return the number of means of a message."""
        return -(-count // ONE_BIT_BLOCK)

    def wire_bytes(self, count: int) -> int:
        """Return the length of a message."""
        return 4 * self.blocks(count) + -(-count // 8)

    def encode(self, p: torch.Tensor, left: torch.Tensor | None) -> torch.Tensor:
        """Return the message for `p`."""
        means = _means(p)
        is_negative = p < 0
        signs = pad(is_negative.view(torch.uint8), (0, -p.numel() % 8)).view(-1, 8)
        packed = (signs * _bits(p.device)).sum(1, dtype=torch.uint8)
        if left is not None:
            torch.sub(p, _signed(means, is_negative), out=left)
        return torch.cat([as_bytes(means), packed])

    def decode(self, wire: torch.Tensor, count: int, factor: float, out: torch.Tensor) -> None:
        """Write factor * the values of a message to `out`."""
        self.decode_sum(wire.view(1, -1), count, factor, out)

    def decode_sum(self, wires: torch.Tensor, count: int, factor: float, out: torch.Tensor) -> None:
        """Write factor * the sum of the messages in the rows of `wires` to `out`."""
        blocks = self.blocks(count)
        for number, wire in enumerate(wires):
            means = as_dtype(wire[: 4 * blocks], torch.float32)
            signs = (wire[4 * blocks :, None] & _bits(wire.device)).view(-1)[:count]
            values = _signed(means, signs != 0)
            out.add_(values) if number else out.copy_(values)
        if factor != 1:
            out.mul_(factor)


def _means(p: torch.Tensor) -> torch.Tensor:
    magnitudes = p.abs()
    whole = p.numel() // ONE_BIT_BLOCK * ONE_BIT_BLOCK
    means = magnitudes[:whole].view(-1, ONE_BIT_BLOCK).mean(1)
    if whole < p.numel():
        means = torch.cat([means, magnitudes[whole:].mean(0, keepdim=True)])
    return means.masked_fill_(~torch.isfinite(means), math.nan)


def _signed(means: torch.Tensor, is_negative: torch.Tensor) -> torch.Tensor:
    """Return the mean of each value's block, negative where the value is negative."""
    each = means.repeat_interleave(ONE_BIT_BLOCK, output_size=means.numel() * ONE_BIT_BLOCK)[: is_negative.numel()]
    return torch.where(is_negative, -each, each)


def _bits(device: torch.device) -> torch.Tensor:
    return torch.ones(8, dtype=torch.uint8, device=device) << torch.arange(8, dtype=torch.uint8, device=device)
