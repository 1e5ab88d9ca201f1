# SPDX-License-Identifier: Apache-2.0
"""Codecs that compress flat float32 arrays to bytes in JAX operations, inside jit and outside: int8, one bit, top-k.

The formats are those of the engine, which engine/codecs/codecs.h describes. The length of a message depends only on the
number of values, so that shapes in a compiled program are fixed.
"""

from __future__ import annotations

import functools
from typing import Protocol

import jax

from horovod.common.compression_methods import CompressionMethod, Int8, OneBit, TopK
from horovod.jax.adapter import JaxArray
from horovod.jax.codecs.int8 import Int8Codec
from horovod.jax.codecs.onebit import OneBitCodec
from horovod.jax.codecs.topk import TopKCodec


class Codec(Protocol):
    """Encoder and decoder of one wire format. Codecs are immutable, so that programs can be cached by them."""

    def wire_bytes(self, count: int) -> int:
        """Return the length of a message for `count` values."""

    def encode(self, p: JaxArray) -> tuple[JaxArray, JaxArray]:
        """Return the message for `p`, and what the message lacks of `p` (the next residual)."""

    def decode(self, wire: JaxArray, count: int) -> JaxArray:
        """Return the values of a message."""


def codec_for(method: CompressionMethod) -> Codec:
    """Return the codec of a method."""
    if isinstance(method, Int8):
        return Int8Codec(method.block)
    if isinstance(method, OneBit):
        return OneBitCodec()
    if isinstance(method, TopK):
        return TopKCodec(method.ratio)
    raise ValueError(f"There is no codec for the method {method.describe()}")


@functools.partial(jax.jit, static_argnums=0)
def encode(codec: Codec, p: JaxArray) -> tuple[JaxArray, JaxArray]:
    """Run `codec.encode` as one program, outside jit as well."""
    return codec.encode(p)


@functools.partial(jax.jit, static_argnums=(0, 2))
def decode(codec: Codec, wire: JaxArray, count: int) -> JaxArray:
    """Run `codec.decode` as one program, outside jit as well."""
    return codec.decode(wire, count)


@functools.partial(jax.jit, static_argnums=(0, 2))
def decode_sum(codec: Codec, wires: JaxArray, count: int) -> JaxArray:
    """Return the sum of the messages in the rows of `wires`, added in order so that all ranks get equal bits."""
    total = codec.decode(wires[0], count)
    for row in range(1, wires.shape[0]):
        total = total + codec.decode(wires[row], count)
    return total


__all__ = ["Codec", "Int8Codec", "OneBitCodec", "TopKCodec", "codec_for", "decode", "decode_sum", "encode"]
