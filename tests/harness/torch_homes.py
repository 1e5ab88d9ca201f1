# SPDX-License-Identifier: Apache-2.0
"""Helpers to check that moving gradients into shared memory does not change the results of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch

import horovod.torch as hvd
from harness.worlds import DYNAMIC, World, on_all_ranks

Tensor = torch.Tensor
ANY_TENSOR = Any  # a gradient; mypy treats it as possibly None

# Older versions of torch do not report references to a gradient, so there all gradients stay in ordinary memory.
MOVES = hasattr(torch._C, "_storage_Use_Count")
_SHARED = DYNAMIC | {"HOROVOD_TORCH_SHARED_GRADIENTS": "1"}
HOMES2 = World("homes2", "a:2", _SHARED)
HOMES4 = World("homes4", "a:4", _SHARED)

on_two = partial(on_all_ranks, HOMES2, limit_s=120)
on_both = partial(on_all_ranks, HOMES2, HOMES4, limit_s=120)


@contextmanager
def staged() -> Iterator[None]:
    """Make optimizers that are created in the block leave gradients in the memory in which autograd put them."""
    with mock.patch("horovod.torch.optimizer.gradient_homes", return_value=None):
        yield


def kind_of_memory(tensor: ANY_TENSOR) -> str:
    """Return the kind of a tensor's memory.

    `shared` is the ranks' shared memory, `private` was shared before a fork or before its world ended; else `ordinary`.
    """
    address = tensor.data_ptr()
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            begin, end = (int(bound, 16) for bound in line.split()[0].split("-"))
            if begin <= address < end and "khorovod" in line:
                return "shared" if line.split()[1].endswith("s") else "private"
    return "ordinary"


def is_home(tensor: ANY_TENSOR) -> bool:
    return kind_of_memory(tensor) == "shared"


def make_parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    """Return two parameters of odd sizes that are large enough to move into shared memory, and one that is not."""
    torch.manual_seed(5)
    return [torch.nn.Parameter(torch.randn(*shape).to(dtype)) for shape in ((40_009,), (181, 190), (3, 5))]


def make_optimizer(parameters: Sequence[Tensor], plain: Any = torch.optim.SGD, **options: Any) -> Any:
    return hvd.DistributedOptimizer(plain(parameters, lr=0.01), **options)


def noise(step: int, like: Tensor) -> Tensor:
    """Return values that differ between ranks and steps."""
    generator = torch.Generator().manual_seed(1000 * step + hvd.rank())
    return torch.randn(like.shape, generator=generator).to(like.dtype)


def loss_of(parameters: Sequence[Tensor], step: int) -> Tensor:
    losses = [(parameter * noise(step, parameter)).sin().sum() for parameter in parameters]
    return torch.stack([loss.float() for loss in losses]).sum()


def alike(scenario: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a scenario, checked to be equal with and without gradients in shared memory.

    The scenario returns tensors, or lists of them.
    """
    with staged():
        without = _bits(scenario(*arguments))
    assert _bits(scenario(*arguments)) == without
    return without


def _bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        dense = value.detach().to_dense() if value.is_sparse else value.detach()
        return str(value.dtype), tuple(value.shape), dense.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return [_bits(one) for one in value] if isinstance(value, (list, tuple)) else value
