# SPDX-License-Identifier: Apache-2.0
"""Compression of JAX arrays for a collective, inside jit and outside. Users may provide their own Compressor."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from horovod.common.compression_methods import Dgc, Int8, OneBit, PowerSGD, TopK
from horovod.common.wire import travels_as
from horovod.jax.adapter import JaxArray


class Compressor:
    """compress(array) → (array to send, context); decompress(result, context) → array in the original dtype."""

    @staticmethod
    def compress(tensor: JaxArray) -> tuple[JaxArray, Any]:
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: JaxArray, ctx: Any) -> JaxArray:
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Compressor that sends arrays as they are."""

    @staticmethod
    def compress(tensor: JaxArray) -> tuple[JaxArray, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: JaxArray, ctx: Any) -> JaxArray:
        return tensor


class _Cast(Compressor):
    """Compressor that sends floating-point arrays that are wider than `dtype` as `dtype`."""

    dtype: Any

    @classmethod
    def compress(cls, tensor: JaxArray) -> tuple[JaxArray, Any]:
        tensor = jnp.asarray(tensor)
        wide = jnp.issubdtype(tensor.dtype, jnp.floating) and tensor.dtype.itemsize > jnp.dtype(cls.dtype).itemsize
        return (tensor.astype(cls.dtype), tensor.dtype) if wide else (tensor, None)

    @classmethod
    def decompress(cls, tensor: JaxArray, ctx: Any) -> JaxArray:
        return tensor if ctx is None else tensor.astype(ctx)


@travels_as("float16")
class FP16Compressor(_Cast):
    """Compressor that sends wider floating-point arrays as float16."""

    dtype = jnp.float16


@travels_as("bfloat16")
class BF16Compressor(_Cast):
    """Compressor that sends wider floating-point arrays as bfloat16, which keeps float32's range."""

    dtype = jnp.bfloat16


class Compression:
    """The compressors that come with Horovod; and methods with arguments, for optimizers."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8
    onebit = OneBit
    topk = TopK
    dgc = Dgc
    powersgd = PowerSGD
