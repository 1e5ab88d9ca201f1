# SPDX-License-Identifier: Apache-2.0
"""Compression methods for Keras on PyTorch; applies the communication hook of torch's optimizers to gradient groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.calls import ALLREDUCE, Call
from horovod.common.compression_methods import CompressionMethod, Dgc, Int8, OneBit, PowerSGD, TopK
from horovod.common.group_contents import with_compression
from horovod.common.process_sets import ProcessSet
from horovod.common.supported_methods import check_exclude
from horovod.torch import direct
from horovod.torch.compressing import CompressionHook
from horovod.torch.hooks.bucket import Bucket
from horovod.torch.hooks.collectives import as_handle

METHODS = (Int8, OneBit, TopK, PowerSGD, Dgc)


class CompressedOnTorch:
    """Reduction of gradients by a compression method, with the state that the next step needs.

    Attributes:
        hook: The communication hook; its `state_dict` returns the state.
    """

    def __init__(self, method: CompressionMethod, op: int) -> None:
        self.hook = CompressionHook(method)
        self._method = method
        self._op = op
        self._numbers: dict[tuple[int, ...], int] = {}  # number of each group, by the ids of its variables
        self._checked: set[tuple[str, ...]] = set()

    @property
    def acts_alone(self) -> bool:
        """Return True if the method changes gradients even if no other rank takes part: DGC applies its momentum."""
        return self.hook.acts_alone

    def check(self, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Raise ValueError for gradients that are not floats, or if an `exclude` pattern matches no variable."""
        for variable, gradient in zip(variables, gradients, strict=True):
            if gradient is not None and not gradient.is_floating_point():
                raise ValueError(
                    f"compression={self._method.describe()} supports floating-point gradients; that of {variable.path} "
                    f"is {gradient.dtype}"
                )
        names = tuple(str(variable.path) for variable in variables)
        if names not in self._checked:
            check_exclude(self._method, names)
            self._checked.add(names)

    def __call__(
        self, gradients: Sequence[Any], variables: Sequence[Any], name: str, process_set: ProcessSet, contents: str
    ) -> list[Any]:
        """Return the reduced gradients. First reduce one value, so that ranks compare the group's contents."""
        contents = with_compression(contents, self._method.describe(), [])
        call = Call(ALLREDUCE, process_set, f"{name}.compared", self._op, grouped=True, contents=contents)
        direct.run(call, [torch.zeros(1)])
        if not gradients:
            return []
        wide = [it.detach().float() if it.itemsize < 4 else it.detach() for it in gradients]
        dtype = torch.float64 if any(it.dtype is torch.float64 for it in wide) else torch.float32
        flat = torch.cat([it.reshape(-1).to(dtype) for it in wide])
        parts = torch.split(flat, [it.numel() for it in gradients])
        views = [_folded(part, it.shape) for part, it in zip(parts, gradients, strict=True)]
        named = {f"{variable.path}": view for variable, view in zip(variables, views, strict=True)}
        if len(named) < len(views):  # layers have equal names, so numbers distinguish them
            named = {f"{variable.path}#{place}": views[place] for place, variable in enumerate(variables)}
        number = self._numbers.setdefault(tuple(map(id, variables)), len(self._numbers))
        reduction = Call(ALLREDUCE, process_set, None, self._op, in_place=True)
        bucket = Bucket(number, True, flat, named, reduction, lambda stage: f"{name}.{stage}")
        result = torch.split(self._run(bucket), [it.numel() for it in gradients])
        return [part.view(it.shape).to(it.dtype) for part, it in zip(result, gradients, strict=True)]

    def _run(self, bucket: Bucket) -> torch.Tensor:
        running = self.hook(bucket)
        try:
            yielded = next(running)
            while True:
                yielded = running.send(as_handle(yielded).result())
        except StopIteration as end:
            reduced: torch.Tensor = end.value
            return reduced
        except BaseException:
            bucket.abandon()
            raise


def _folded(part: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return a view of a gradient. In Keras the last dimension of a kernel holds the outputs, so keep it as columns.

    PowerSGD folds a gradient to a matrix by its first dimension, which would leave few rows of a convolution's kernel.
    """
    return part.view(-1, shape[-1]) if len(shape) > 2 and part.numel() else part.view(shape)
