# SPDX-License-Identifier: Apache-2.0
"""Compression of torch tensors for a collective. Users may provide their own Compressor."""

from __future__ import annotations

from typing import Any

import torch

from horovod.common.compression_methods import Dgc, Int8, OneBit, PowerSGD, TopK
from horovod.common.wire import travels_as


class Compressor:
    """Base class for your own compressors.

    Override two static methods. `compress(tensor)` returns the tensor to send and a context; `decompress(tensor, ctx)`
    returns the result in the original type.

    Example:
        >>> half = hvd.Compression.fp16
        >>> issubclass(half, hvd.Compressor)  # on 2 ranks: True
    """

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor to send, and what decompress() needs.

        Args:
            tensor: The tensor to compress.

        Returns:
            The compressed tensor, and a context of any type that stays on this rank.
        """
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the result of a collective in its original type.

        Args:
            tensor: The result that came back.
            ctx: The context that compress() returned.

        Returns:
            The tensor in its original type.
        """
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
    """Ways to send fewer bytes: classes for `compression`, and methods with arguments.

    `none`, `fp16` and `bf16` are classes that every function with `compression` accepts. `int8()`, `onebit()`,
    `topk()`, `powersgd()` and `dgc()` are methods for hvd.DistributedOptimizer(); call them with their arguments. By
    default they compress only what leaves a host. Of the methods, allreduce() accepts `int8()` only.

    Example:
        >>> tensor = torch.zeros(2)
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
