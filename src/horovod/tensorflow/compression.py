# SPDX-License-Identifier: Apache-2.0
"""Compressors of tensors in collectives, in eager mode and in graphs. Users may define their own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.common.compression_methods import Dgc, Int8, OneBit, PowerSGD, TopK


class Compressor:
    """Base class for your own compressors.

    Override two static methods. `compress(tensor)` returns the tensor to send and a context; `decompress(tensor, ctx)`
    returns the result in the original type.

    Example:
        >>> half = hvd.Compression.fp16
        >>> issubclass(half, hvd.Compressor)  # on 2 ranks: True
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and what decompress() needs.

        Args:
            tensor: The tensor to compress.

        Returns:
            The compressed tensor, and a context of any type that stays on this rank.
        """
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the result of a collective in its original type.

        Args:
            tensor: The result that came back.
            ctx: The context that compress() returned.

        Returns:
            The tensor in its original type.
        """
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Compressor that sends tensors unchanged."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


def _narrow(tensor: Any, dtype: tf.DType) -> tuple[Any, Any]:
    wide = tensor.dtype.is_floating and tensor.dtype.size > dtype.size
    return (tf.cast(tensor, dtype), tensor.dtype) if wide else (tensor, None)


def _widen(tensor: Any, ctx: Any) -> Any:
    return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(Compressor):
    """Compressor that sends wider floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return _narrow(tensor, tf.float16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return _widen(tensor, ctx)


class BF16Compressor(Compressor):
    """Compressor that sends wider floating-point tensors as bfloat16, which keeps float32's range."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return _narrow(tensor, tf.bfloat16)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return _widen(tensor, ctx)


class Compression:
    """Ways to send fewer bytes: classes for `compression`, and methods with arguments.

    `none`, `fp16` and `bf16` are classes that every function with `compression` accepts. `int8()` and `powersgd()` are
    methods for optimizers and tapes; allreduce() and grouped_allreduce() also accept `int8()`. By default they compress
    only what leaves a host. The other methods are refused.

    Example:
        >>> tensor = tf.zeros(2)
        >>> hvd.allreduce(tensor, compression=hvd.Compression.fp16).numpy().tolist()  # on 2 ranks: [0.0, 0.0]
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8
    powersgd = PowerSGD
    onebit = OneBit
    topk = TopK
    dgc = Dgc
