# SPDX-License-Identifier: Apache-2.0
"""Engine codecs for tensors in host memory, which are read and written in place."""

from __future__ import annotations

from typing import Any

import torch

from horovod.common import codecs

_PAIR = 8  # bytes of an index and a value


class HostCodec:
    """Codec that passes tensors to one of the engine's codecs as NumPy arrays, without a copy."""

    def __init__(self, codec: codecs.Codec) -> None:
        self._codec = codec

    def wire_bytes(self, count: int) -> int:
        """Return the length of a message; for top-k, the largest length of any message."""
        return self._codec.wire_bytes(count)

    def encode(self, p: torch.Tensor, left: torch.Tensor | None, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Return the message for `p`, or for the sum of `p` and a residual."""
        return torch.from_numpy(self._codec.encode(p.numpy(), _array(residual), _array(left)))

    def encode_padded(
        self, p: torch.Tensor, left: torch.Tensor | None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return a top-k message, padded to the largest length with pairs (0, 0.0), which change no sum."""
        wire = self.encode(p, left, residual)
        size, pairs = self.wire_bytes(p.numel()), wire.numel() // _PAIR
        padded = torch.zeros(size, dtype=torch.uint8)
        padded[: 4 * pairs] = wire[: 4 * pairs]
        padded[size // 2 : size // 2 + 4 * pairs] = wire[4 * pairs :]
        return padded

    def decode(self, wire: torch.Tensor, count: int, factor: float, out: torch.Tensor) -> None:
        """Write factor * the values of a message to `out`."""
        self._codec.decode(wire.numpy(), count, factor, out.numpy())

    def decode_sum(self, wires: torch.Tensor, count: int, factor: float, out: torch.Tensor) -> None:
        """Write factor * the sum of the messages in the rows of `wires` to `out`."""
        self._codec.decode_sum([wire.numpy() for wire in wires], count, factor, out.numpy())


def _array(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else tensor.numpy()
