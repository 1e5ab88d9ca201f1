# SPDX-License-Identifier: Apache-2.0
"""Dispatch of a tensor to the collectives for its memory: directly, or by a staged copy.

This module knows neither autograd nor the compiler; both are built on top of it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from horovod._engine import ArrayCalls
from horovod.common.calls import Call
from horovod.common.context import default_context
from horovod.common.handles import translate
from horovod.torch.adapter import Tensor, TorchAdapter, plain_tensors, refuse
from horovod.torch.in_flight import add as add
from horovod.torch.lazy_bits import TensorCollectives

host = TensorCollectives(default_context, TorchAdapter())
native = ArrayCalls(plain_tensors(), default_context.handles.plain, translate)
finish = default_context.handles.finish
poll = default_context.handles.poll
synchronize = default_context.handles.synchronize
finish_batch = default_context.handles.finish_batch


@functools.cache
def on_gpu() -> TensorCollectives:
    """Return the collectives for CUDA tensors."""
    from horovod.torch.cuda_direct import DeviceCollectives
    from horovod.torch.cuda_staging import StagedCollectives
    from horovod.torch.cuda_streams import CudaStreams

    return DeviceCollectives(default_context, StagedCollectives(default_context, CudaStreams()))


def join(device: int) -> int:
    """Join on a GPU if the program uses any; `device` -1 means the current GPU."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return host.join()
    return host.join(torch.cuda.current_device() if device < 0 else device)


def collectives_for(tensor: Tensor) -> TensorCollectives:
    """Return the collectives for the memory that a tensor lies in."""
    try:
        if tensor.is_cpu:
            return host
    except AttributeError:  # not a tensor
        refuse(tensor)
    return on_gpu() if tensor.is_cuda else refuse(tensor)


def collectives_for_group(tensors: Sequence[Tensor]) -> TensorCollectives:
    """Return the collectives for a group of tensors, which must all be on one device."""
    devices = {tensor.device if isinstance(tensor, Tensor) else refuse(tensor) for tensor in tensors}
    if len(devices) > 1:
        raise RuntimeError(
            "The tensors of a group must be on one device, but these are on "
            f"{', '.join(sorted(map(str, devices)))}; make one group for each device"
        )
    return collectives_for(tensors[0]) if tensors else host


def _collectives_of(call: Call, tensors: Sequence[Tensor]) -> TensorCollectives:
    return collectives_for_group(tensors) if call.grouped else collectives_for(tensors[0])


def run(call: Call, tensors: Sequence[Tensor]) -> Any:
    """Run a collective and return its result, without recording it for autograd."""
    return finish(_collectives_of(call, tensors).start(call, tensors, will_wait=True))


def begin(call: Call, tensors: Sequence[Tensor]) -> int:
    """Begin a collective and return its handle."""
    return add(_collectives_of(call, tensors).start(call, tensors, will_wait=False))
