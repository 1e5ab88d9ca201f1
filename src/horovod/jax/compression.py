# SPDX-License-Identifier: Apache-2.0
"""Compression of JAX arrays for a collective, inside jit and outside. Users may provide their own Compressor."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from horovod.common.compression_methods import Dgc, Int8, OneBit, PowerSGD, TopK
from horovod.common.wire import travels_as
from horovod.jax.adapter import JaxArray


class Compressor:
    """Base class for your own compressors.

    Override two static methods. `compress(tensor)` returns the array to send and a context; `decompress(tensor, ctx)`
    returns the result in the original type.

    Example:
        >>> half = hvd.Compression.fp16
        >>> issubclass(half, hvd.Compressor)  # on 2 ranks: True
    """

    @staticmethod
    def compress(tensor: JaxArray) -> tuple[JaxArray, Any]:
        """Return the array to send, and what decompress() needs.

        Args:
            tensor: The array to compress.

        Returns:
            The compressed array, and a context of any type that stays on this rank.
        """
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: JaxArray, ctx: Any) -> JaxArray:
        """Return the result of a collective in its original type.

        Args:
            tensor: The result that came back.
            ctx: The context that compress() returned.

        Returns:
            The array in its original type.
        """
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
    """Ways to send fewer bytes: classes for `compression`, and methods with arguments.

    `none`, `fp16` and `bf16` are classes that every function with `compression` accepts. `int8()`, `onebit()`,
    `topk()`, `powersgd()` and `dgc()` are methods for hvd.DistributedOptimizer(); call them with their arguments. By
    default they compress only what leaves a host. Of the methods, allreduce() and grouped_allreduce() accept `int8()`
    only.

    Example:
        >>> tensor = jnp.zeros(2)
        >>> hvd.allreduce(tensor, compression=hvd.Compression.fp16).tolist()  # on 2 ranks: [0.0, 0.0]
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8
    onebit = OneBit
    topk = TopK
    dgc = Dgc
    powersgd = PowerSGD
