# SPDX-License-Identifier: Apache-2.0
"""Compressors of MXNet arrays for collectives. Users may pass their own Compressor."""

from __future__ import annotations

from typing import Any

import numpy as np

from horovod.common.compression_methods import Dgc, Int8, OneBit, PowerSGD, TopK
from horovod.mxnet.adapter import NDArray


class Compressor:
    """Base class for your own compressors.

    Override two static methods. `compress(tensor)` returns the NDArray to send and a context; `decompress(tensor, ctx)`
    returns the result in the original type.

    Example:
        >>> half = hvd.Compression.fp16
        >>> issubclass(half, hvd.Compressor)  # on 2 ranks: True
    """

    @staticmethod
    def compress(tensor: NDArray) -> tuple[NDArray, Any]:
        """Return the NDArray to send, and what decompress() needs.

        Args:
            tensor: The NDArray to compress.

        Returns:
            The compressed NDArray, and a context of any type that stays on this rank.
        """
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: NDArray, ctx: Any) -> NDArray:
        """Return the result of a collective in its original type.

        Args:
            tensor: The result that came back.
            ctx: The context that compress() returned.

        Returns:
            The NDArray in its original type.
        """
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Compressor that sends arrays as they are."""

    @staticmethod
    def compress(tensor: NDArray) -> tuple[NDArray, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: NDArray, ctx: Any) -> NDArray:
        return tensor


class FP16Compressor(Compressor):
    """Compressor that sends floating-point arrays as float16."""

    @staticmethod
    def compress(tensor: NDArray) -> tuple[NDArray, Any]:
        if np.dtype(tensor.dtype).kind != "f":
            return tensor, None
        return tensor.astype(np.float16, copy=False), tensor.dtype

    @staticmethod
    def decompress(tensor: NDArray, ctx: Any) -> NDArray:
        return tensor if ctx is None else tensor.astype(ctx, copy=False)


class Compression:
    """Ways to send fewer bytes: classes for `compression`, and methods with arguments.

    `none` and `fp16` are classes for hvd.DistributedTrainer. MXNet refuses the methods with arguments.

    Example:
        >>> network = mx.gluon.nn.Dense(1, in_units=2)
        >>> network.initialize()
        >>> trainer = hvd.DistributedTrainer(network.collect_params(), 'sgd', compression=hvd.Compression.fp16)
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    int8 = Int8
    onebit = OneBit
    topk = TopK
    powersgd = PowerSGD
    dgc = Dgc
