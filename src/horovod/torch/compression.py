# SPDX-License-Identifier: Apache-2.0
"""Compression of torch tensors for a collective. Users may provide their own Compressor."""

from __future__ import annotations

from typing import Any

import torch

from horovod.common.compression_methods import Dgc, Int8, OneBit, PowerSGD, TopK
from horovod.common.wire import travels_as


class Compressor:
    """compress(tensor) → (tensor to send, context); decompress(result, context) → tensor in the original dtype."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Compressor that sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


@travels_as("float16")
class FP16Compressor(Compressor):
    """Compressor that sends floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (tensor.half(), tensor.dtype) if tensor.dtype.is_floating_point else (tensor, None)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


@travels_as("bfloat16")
class BF16Compressor(Compressor):
    """Compressor that sends floating-point tensors as bfloat16, which keeps float32's range."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (tensor.bfloat16(), tensor.dtype) if tensor.dtype.is_floating_point else (tensor, None)

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


def is_convertible(tensor: torch.Tensor) -> bool:
    """Return True if the engine can convert the tensor instead of a compressor marked with @travels_as."""
    recorded = tensor.requires_grad and torch.is_grad_enabled()
    return tensor.dtype is torch.float32 and tensor.is_cpu and not recorded


class Compression:
    """The compressors that come with Horovod, and bf16; and methods with arguments, for optimizers."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8
    onebit = OneBit
    topk = TopK
    dgc = Dgc
    powersgd = PowerSGD
