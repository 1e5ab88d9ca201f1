# SPDX-License-Identifier: Apache-2.0
"""Top-k codec in torch operations: int32 indices of the largest values, then these values as float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from horovod.torch.codecs.byte_views import as_bytes, as_dtype

_PAIR = 8  # bytes of an index and a value
_SAMPLE_AT_LEAST = 1024
_SAMPLE_EVERY = 100


@dataclass(frozen=True)
class TopKCodec:
    """Codec for messages of at most 1.25 * ratio * count pairs of index and value."""

    ratio: float

    def wanted(self, count: int) -> int:
        """Return k, the number of values that a message has on average."""
        return max(1, round(self.ratio * count))

    def most(self, count: int) -> int:
        """Return the largest number of values in a message."""
        return min(count, -(-5 * self.wanted(count) // 4))

    def wire_bytes(self, count: int) -> int:
        """Return the length of a padded message, which is the largest length of any message."""
        return _PAIR * self.most(count)

    def encode(self, p: torch.Tensor, left: torch.Tensor | None) -> torch.Tensor:
        """Return the message for `p`."""
        indices, values = self._select(p, left)
        return torch.cat([as_bytes(indices), as_bytes(values)])

    def encode_padded(self, p: torch.Tensor, left: torch.Tensor | None) -> torch.Tensor:
        """Return the message for `p`, padded to `wire_bytes` by pairs (0, 0.0), which change no sum."""
        indices, values = self._select(p, left)
        missing = (0, self.most(p.numel()) - indices.numel())
        return torch.cat([as_bytes(pad(indices, missing)), as_bytes(pad(values, missing))])

    def decode(self, wire: torch.Tensor, count: int, factor: float, out: torch.Tensor) -> None:
        """Write factor * the values of a message to `out`, and zero to the rest of it."""
        self.decode_sum(wire.view(1, -1), count, factor, out)

    def decode_sum(self, wires: torch.Tensor, count: int, factor: float, out: torch.Tensor) -> None:
        """Write factor * the sum of the messages in the rows of `wires` (padded to one length) to `out`."""
        out[:count].zero_()
        for wire in wires:
            pairs = wire.numel() // _PAIR
            indices = as_dtype(wire[: 4 * pairs], torch.int32)
            out.index_add_(0, indices, as_dtype(wire[4 * pairs :], torch.float32))
        if factor != 1:
            out.mul_(factor)

    def _select(self, p: torch.Tensor, left: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the indices and values to send, and write `p` without them to `left`."""
        magnitudes = p.abs()
        lowest, highest = torch.aminmax(p)
        is_finite = torch.isfinite(lowest) & torch.isfinite(highest)
        # Exclude zeros, because sending one changes no sum.
        reaches = (magnitudes >= self._threshold(magnitudes)) & (magnitudes > 0) & is_finite
        # The message's length depends on the values, so the host has to wait for the GPU here.
        # It waits once more only if too many values reach the threshold.
        indices = reaches.nonzero().view(-1)
        if not indices.numel():  # no value can be sent, because all are zero or one is not finite
            only = p[:1].clone().masked_fill_(~is_finite, math.nan)
            if left is not None and left is not p:
                left.copy_(p)
            return torch.zeros(1, dtype=torch.int32, device=p.device), only
        if indices.numel() > self.most(p.numel()):
            indices = indices[_largest(magnitudes[indices], self.most(p.numel()))]
        values = p[indices]
        if left is not None:
            if left is not p:
                left.copy_(p)
            left.index_fill_(0, indices, 0.0)
        return indices.to(torch.int32), values

    def _threshold(self, magnitudes: torch.Tensor) -> torch.Tensor:
        """Estimate the k-th largest magnitude from a sample."""
        count = magnitudes.numel()
        sample = magnitudes[_positions(count, magnitudes.device)] if count > _SAMPLE_AT_LEAST else magnitudes
        size = sample.numel()
        number = min(size, max(1, (2 * self.wanted(count) * size + count) // (2 * count)))
        return torch.topk(sample, number, sorted=False).values.min()


def _positions(count: int, device: torch.device) -> torch.Tensor:
    """Return ascending positions for a sample: the values are divided into ranges, and a fixed hash picks one in each.

    Positions at equal distances would hit the same few columns of a matrix in each row.
    """
    size = max(_SAMPLE_AT_LEAST, count // _SAMPLE_EVERY)
    width = count // size
    numbers = torch.arange(size, device=device)
    hashed = (numbers * 2654435761) & 0xFFFFFFFF
    return numbers * count // size + ((hashed * width) >> 32)


def _largest(magnitudes: torch.Tensor, number: int) -> torch.Tensor:
    """Return the ascending positions of the largest values; among equal ones, the first are taken."""
    least = torch.topk(magnitudes, number, sorted=False).values.min()
    above = (magnitudes > least).nonzero().view(-1)
    equal = (magnitudes == least).nonzero().view(-1)[: number - above.numel()]
    return torch.cat([above, equal]).sort().values
