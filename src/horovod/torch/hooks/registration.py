# SPDX-License-Identifier: Apache-2.0
"""hvd.register_comm_hook(), which checks the optimizer and the hook, and attaches the hook to the reducer."""

from __future__ import annotations

import torch

from horovod.common.rules import Adasum, Average, Sum
from horovod.torch.compressing.hook import CompressionHook
from horovod.torch.compression import NoneCompressor
from horovod.torch.hooks.attached import check_dtype
from horovod.torch.hooks.bucket import CommHook
from horovod.torch.hooks.layout import DEFAULT_BYTES
from horovod.torch.reducing_optimizer import _DistributedOptimizer
from horovod.torch.wrapping import WrappedOptimizer


def register_comm_hook(optimizer: torch.optim.Optimizer, hook: CommHook, bucket_bytes: int = DEFAULT_BYTES) -> None:
    """Let a hook reduce the gradients of a distributed optimizer, bucket by bucket.

    The hook is a generator function. It receives a bucket of gradients, yields handles of collectives that it begins
    with the bucket's methods, receives their results, and returns the reduced bucket. Register the same hook on all
    ranks before the first backward pass; until then another hook may take its place. The hook is not called where no
    other rank takes part.

    Args:
        optimizer: What hvd.DistributedOptimizer() returned.
        hook: A generator function, or a callable object. If it has arguments, give it a describe() method or a repr()
            that shows them, because ranks compare the text.
        bucket_bytes: Size of a bucket in bytes. The first rank's value counts.

    Raises:
        TypeError: The optimizer is not distributed, or the hook cannot be called.
        ValueError: The optimizer has another `op` than Average and Sum, compresses already, or has a parameter of an
            unsupported type; or bucket_bytes is below 1.

    Example:
        >>> optimizer = hvd.DistributedOptimizer(torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1))
        >>> hvd.register_comm_hook(optimizer, lambda bucket: (yield bucket.allreduce_async(bucket.tensor)))
    """
    if not isinstance(optimizer, WrappedOptimizer):
        raise TypeError(
            f"register_comm_hook needs what hvd.DistributedOptimizer() returns, not {type(optimizer).__name__}"
        )
    if not callable(hook):
        raise TypeError(f"register_comm_hook needs a generator function, not {type(hook).__name__}")
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes must be at least 1, not {bucket_bytes}")
    if optimizer.op == Adasum:
        raise ValueError("register_comm_hook does not support op=hvd.Adasum; use op=hvd.Average or op=hvd.Sum")
    if optimizer.op not in (Average, Sum) or not isinstance(optimizer, _DistributedOptimizer):
        raise ValueError("register_comm_hook supports op=hvd.Average and op=hvd.Sum only")
    compresses = isinstance(optimizer._comm_hook, CompressionHook) and hook is not optimizer._comm_hook
    if optimizer._compression is not NoneCompressor or compresses:
        raise ValueError("register_comm_hook needs compression=hvd.Compression.none: the hook decides what is sent")
    for parameter, name in optimizer._parameter_names.items():
        if parameter.requires_grad:
            check_dtype(name, parameter)
    optimizer._comm_hook = hook if optimizer._reducer is None else optimizer._reducer.attach(hook, bucket_bytes)
