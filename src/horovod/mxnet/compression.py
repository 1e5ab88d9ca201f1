# SPDX-License-Identifier: Apache-2.0
"""Compressors of MXNet arrays for collectives. Users may pass their own Compressor."""

from __future__ import annotations

from typing import Any

import numpy as np

from horovod.common.compression_methods import Dgc, Int8, OneBit, PowerSGD, TopK
from horovod.mxnet.adapter import NDArray


class Compressor:
    """compress(array) → (array to send, context); decompress(result, context) → array in the original dtype."""

    @staticmethod
    def compress(tensor: NDArray) -> tuple[NDArray, Any]:
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: NDArray, ctx: Any) -> NDArray:
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
    """The compressors that come with Horovod. MXNet refuses the methods with arguments, by their names."""

    none = NoneCompressor
    fp16 = FP16Compressor
    int8 = Int8
    onebit = OneBit
    topk = TopK
    powersgd = PowerSGD
    dgc = Dgc
