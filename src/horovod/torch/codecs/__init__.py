# SPDX-License-Identifier: Apache-2.0
"""Codecs that compress flat float32 tensors to bytes where the tensors lie, and the choice among them by device."""

from __future__ import annotations

from typing import Protocol

import torch

from horovod.common.compression_methods import CompressionMethod, Int8, OneBit, TopK
from horovod.torch.codecs.int8 import Int8Codec
from horovod.torch.codecs.onebit import OneBitCodec
from horovod.torch.codecs.topk import TopKCodec


class Codec(Protocol):
    """Both directions of one wire format. Tensors are flat, contiguous, and on one device.

    `left` receives what the message lacks of `p` (the next residual); it may be `p` itself. `decode` and `decode_sum`
    overwrite `out` with factor * the values of one message, or factor * the sum over the rows of `wires`, in order.
    """

    def encode(self, p: torch.Tensor, left: torch.Tensor | None) -> torch.Tensor: ...

    def decode(self, wire: torch.Tensor, count: int, factor: float, out: torch.Tensor) -> None: ...

    def decode_sum(self, wires: torch.Tensor, count: int, factor: float, out: torch.Tensor) -> None: ...


def codec_for(method: CompressionMethod, device: torch.device) -> Codec:
    """Return the codec of a method for tensors on a device.

    This is the one place that chooses by device: a native codec for tensors in host memory belongs here. All codecs
    below consist of torch operations, which run on every device.
    """
    if isinstance(method, Int8):
        return Int8Codec(method.block)
    if isinstance(method, OneBit):
        return OneBitCodec()
    if isinstance(method, TopK):
        return TopKCodec(method.ratio)
    raise ValueError(f"There is no codec for tensors on {device.type} for the method {method.describe()}")


__all__ = ["Codec", "Int8Codec", "OneBitCodec", "TopKCodec", "codec_for"]
