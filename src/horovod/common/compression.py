# SPDX-License-Identifier: Apache-2.0
"""Compressors of NumPy arrays for collectives. Users may pass their own Compressor."""

from __future__ import annotations

from typing import Any

import numpy as np

from horovod.common.arrays import Array
from horovod.common.compression_methods import Dgc, Int8, OneBit, PowerSGD, TopK
from horovod.common.wire import travels_as


class Compressor:
    """Base class for your own compressors.

    Override two static methods. `compress(tensor)` returns the array to send and a context; `decompress(tensor, ctx)`
    returns the result in the original type.

    Example:
        >>> half = hvd.Compression.fp16
        >>> issubclass(half, hvd.Compressor)  # on 2 ranks: True
    """

    @staticmethod
    def compress(tensor: Array) -> tuple[Array, Any]:
        """Return the tensor to send, and what decompress() needs.

        Args:
            tensor: The tensor to compress.

        Returns:
            The compressed tensor, and a context of any type that stays on this rank.
        """
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Array, ctx: Any) -> Array:
        """Return the result of a collective in its original type.

        Args:
            tensor: The result that came back.
            ctx: The context that compress() returned.

        Returns:
            The tensor in its original type.
        """
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Compressor that sends arrays as they are."""

    @staticmethod
    def compress(tensor: Array) -> tuple[Array, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Array, ctx: Any) -> Array:
        return tensor


@travels_as("float16")
class FP16Compressor(Compressor):
    """Compressor that sends floating-point arrays as float16."""

    @staticmethod
    def compress(tensor: Array) -> tuple[Array, Any]:
        if tensor.dtype.kind != "f":
            return tensor, None
        return tensor.astype(np.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: Array, ctx: Any) -> Array:
        return tensor if ctx is None else tensor.astype(ctx)


@travels_as("bfloat16")
class BF16Compressor(Compressor):
    """Compressor that sends floating-point arrays as bfloat16, which has float32's range.

    For float64 arrays it needs the ml_dtypes package.
    """

    @staticmethod
    def compress(tensor: Array) -> tuple[Array, Any]:
        if tensor.dtype.kind != "f":
            return tensor, None
        import ml_dtypes

        return tensor.astype(ml_dtypes.bfloat16), tensor.dtype

    @staticmethod
    def decompress(tensor: Array, ctx: Any) -> Array:
        return tensor if ctx is None else tensor.astype(ctx)


class Compression:
    """Ways to send fewer bytes: classes for `compression`, and methods with arguments.

    `none`, `fp16` and `bf16` are classes that every function with `compression` accepts; for float64, bf16 needs the
    ml_dtypes package. allreduce() and grouped_allreduce() also accept `int8()`. No function of this API accepts
    `onebit()`, `topk()`, `powersgd()` or `dgc()` as `compression`; codec() accepts the first two.

    Example:
        >>> array = np.ones(2, np.float32)
        >>> hvd.allreduce(array, compression=hvd.Compression.fp16).tolist()  # on 2 ranks: [1.0, 1.0]
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8
    onebit = OneBit
    topk = TopK
    powersgd = PowerSGD
    dgc = Dgc
