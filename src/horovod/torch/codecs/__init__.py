# SPDX-License-Identifier: Apache-2.0
"""Codecs that compress flat float32 tensors to bytes on the tensors' device, and the choice of a codec by device."""

from __future__ import annotations

from typing import Protocol

import torch

from horovod.common import codecs
from horovod.common.compression_methods import CompressionMethod, Int8, OneBit, TopK
from horovod.torch.codecs.int8 import Int8Codec
from horovod.torch.codecs.on_host import HostCodec
from horovod.torch.codecs.onebit import OneBitCodec
from horovod.torch.codecs.topk import TopKCodec


class Codec(Protocol):
    """Encoder and decoder of one wire format. Tensors are flat, contiguous, and on one device.

    `left` receives what the message lacks of `p` (the next residual); it may be `p` itself. `decode` overwrites `out`
    with factor * the values of one message. `decode_sum` overwrites it with factor * the sum over the rows of `wires`,
    in their order.
    """

    def encode(self, p: torch.Tensor, left: torch.Tensor | None) -> torch.Tensor: ...

    def decode(self, wire: torch.Tensor, count: int, factor: float, out: torch.Tensor) -> None: ...

    def decode_sum(self, wires: torch.Tensor, count: int, factor: float, out: torch.Tensor) -> None: ...


class PairCodec(Codec, Protocol):
    """Codec whose messages are pairs of index and value; their number depends on the values."""

    def encode_padded(self, p: torch.Tensor, left: torch.Tensor | None) -> torch.Tensor:
        """Return the message for `p`, padded to the largest length of any message with pairs that change no sum."""


def codec_for(method: CompressionMethod, device: torch.device) -> Codec:
    """Return a method's codec for tensors on a device: the engine's for host memory, else torch operations."""
    if device.type == "cpu":
        return HostCodec(_on_host(method))
    if isinstance(method, Int8):
        return Int8Codec(method.block)
    if isinstance(method, OneBit):
        return OneBitCodec()
    if isinstance(method, TopK):
        return pair_codec_for(method, device)
    raise ValueError(f"There is no codec for tensors on {device.type} for the method {method.describe()}")


def pair_codec_for(method: TopK, device: torch.device) -> PairCodec:
    """Return the codec of top-k for tensors on a device."""
    return HostCodec(_on_host(method)) if device.type == "cpu" else TopKCodec(method.ratio)


def _on_host(method: CompressionMethod) -> codecs.Codec:
    if isinstance(method, Int8):
        return codecs.Int8Codec(method.block)
    if isinstance(method, OneBit):
        return codecs.OneBitCodec()
    if isinstance(method, TopK):
        return codecs.TopKCodec(method.ratio)
    raise ValueError(f"There is no codec for the method {method.describe()}")


__all__ = ["Codec", "Int8Codec", "OneBitCodec", "PairCodec", "TopKCodec", "codec_for", "pair_codec_for"]
