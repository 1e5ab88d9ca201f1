# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation over the batches of all ranks, as if one process had all of them; on any device.

Each rank sends the number of its values, their mean and their squared deviations to the others. All ranks combine these
in float64, in rank order. Batches may differ in size and may be empty. `weight` and `bias` get the gradients of this
rank's part of the batch; once an optimizer has summed them over the ranks, they are those of the whole batch.

Ranks match layers by number, in the order of first use. If one rank later leaves out a layer, the others wait for this
layer and report it, instead of mixing its values with those of the next layer.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from horovod.common.context import default_context
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.dynamo import outside_dynamo
from horovod.torch.mpi_ops import Sum, allgather_async, allreduce_async, synchronize
from horovod.torch.mpi_ops import size as size


class _Numbers:
    """Numbers of the layers of each process set, in the order of their first use in this era."""

    def __init__(self) -> None:
        self._era = -1
        self._numbers: weakref.WeakKeyDictionary[torch.nn.Module, int] = weakref.WeakKeyDictionary()
        self._used: Counter[int | None] = Counter()  # number of layers, by process set

    def of(self, layer: SyncBatchNorm) -> int:
        """Return the layer's number, which is equal on all ranks that use layers in equal order."""
        if self._era != default_context.era:
            self._era = default_context.era
            self._numbers.clear()
            self._used.clear()
        number = self._numbers.get(layer)
        if number is None:
            set_id = layer.process_set.process_set_id
            number = self._numbers[layer] = self._used[set_id]
            self._used[set_id] += 1
        return number


_numbers = _Numbers()


class SyncBatchNorm(_BatchNorm):
    """Batch normalization with the statistics of all ranks of the process set, for any number of dimensions.

    In eval mode, or in a set of one rank, it is ordinary batch normalization.
    `hvd.SyncBatchNorm.convert_sync_batchnorm(model)` replaces all layers of a model.

    Args:
        num_features: Number of channels, the input's second dimension.
        eps: Number that is added to the variance.
        momentum: Weight of the new batch in the running statistics. None means their plain average.
        affine: Learn a scale and an offset for each channel.
        track_running_stats: Keep running statistics for eval mode.
        process_set: The ranks that take part. By default all ranks of the job.

    Example:
        >>> layer = hvd.SyncBatchNorm(3)
        >>> layer(torch.randn(4, 3, 8)).shape  # on 2 ranks: torch.Size([4, 3, 8])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-05,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    @classmethod
    def convert_sync_batchnorm(cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set) -> Any:
        """Replace every BatchNorm layer of a module by a SyncBatchNorm with its parameters and statistics.

        Args:
            module: The module; a BatchNorm layer or any module that contains some.
            process_set: The ranks that take part. By default all ranks of the job.

        Returns:
            The module, or the new layer if the module itself is a BatchNorm layer.
        """
        made: dict[torch.nn.Module, torch.nn.Module] = {}  # so that a layer that is used twice is replaced by one layer
        for parent in list(module.modules()):
            for name, child in parent._modules.items():
                if isinstance(child, _BatchNorm) and not isinstance(child, cls):
                    made[child] = made.get(child) or cls._like(child, process_set)
                    parent._modules[name] = made[child]
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            return cls._like(module, process_set)
        return module

    @classmethod
    def _like(cls, layer: _BatchNorm, process_set: ProcessSet) -> SyncBatchNorm:
        settings = (layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        made = cls(*settings, process_set=process_set)
        made._parameters, made._buffers, made.training = layer._parameters, layer._buffers, layer.training
        return made

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ValueError(f"Expected an input of shape (N, {self.num_features}, ...), got {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.process_set.size() == 1:
            return super().forward(input)
        return self._forward_on_all(input)

    @outside_dynamo
    def _forward_on_all(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        normalize: Callable[..., tuple[Tensor, ...]] = _SyncBatchNormFunction.apply
        number = _numbers.of(self)
        output, mean, variance, count = normalize(input, self.weight, self.bias, self.eps, self.process_set, number)
        self._track(mean, variance, int(count))
        return output

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: int) -> None:
        if count == 1:
            raise ValueError("Expected more than 1 value per channel when training, counted over all ranks")
        if not self.track_running_stats or self.running_mean is None or self.running_var is None or count == 0:
            return
        factor = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # average over all batches so far
                factor = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (count / (count - 1))
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.copy_(running.double() * (1 - factor) + new * factor)


class _SyncBatchNormFunction(torch.autograd.Function):
    """Normalisation that returns output, mean, biased variance and the number of values per channel.

    Its arguments are input, weight, bias, eps, process set, and number of the layer.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        process_set: ProcessSet,
        number: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = _widened(input)
        mean, variance, count = _combined(_local_moments(wide), process_set, number)
        narrow = [_cast(tensor, wide.dtype) for tensor in (mean, variance, weight, bias)]
        output = F.batch_norm(wide, narrow[0], narrow[1], narrow[2], narrow[3], False, 0.0, eps)
        ctx.save_for_backward(input, weight, mean, torch.rsqrt(variance + eps), count)
        ctx.process_set, ctx.number = process_set, number
        ctx.mark_non_differentiable(mean, variance, count)
        return output.to(input.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
        input, weight, mean, invstd, count = ctx.saved_tensors
        grad, deviation = _widened(grad_output), _widened(input)
        deviation = deviation - _along_channels(mean, deviation)
        dims = _other_dims(grad)
        sums = torch.stack([grad.sum(dims), (grad * deviation).sum(dims)]).double()
        grad_input = None
        if ctx.needs_input_grad[0]:
            name = f"sync_batch_norm.backward.{ctx.number}"
            means = synchronize(allreduce_async(sums, name=name, op=Sum, process_set=ctx.process_set)) / count
            scale = invstd if weight is None else invstd * weight.double()
            grad = grad - _along_channels(means[0], grad)
            deviation = deviation.mul_(_along_channels(means[1] * invstd * invstd, grad))
            grad_input = grad.sub_(deviation).mul_(_along_channels(scale, grad)).to(input.dtype)
        grad_weight = _cast(sums[1] * invstd, weight.dtype) if ctx.needs_input_grad[1] else None
        grad_bias = _cast(sums[0], weight.dtype) if ctx.needs_input_grad[2] else None
        return grad_input, grad_weight, grad_bias, None, None, None


def _local_moments(values: Tensor) -> Tensor:
    """Return one row of float64: each channel's mean, its squared deviations, and the number of values per channel."""
    channels = values.shape[1]
    count = values.numel() // channels if channels else 0
    row = torch.zeros(1, 2 * channels + 1, dtype=torch.float64, device=values.device)
    if count:
        variance, mean = torch.var_mean(values, _other_dims(values), correction=0)
        row[0, :channels] = mean
        row[0, channels:-1] = variance
        row[0, channels:-1] *= count
        row[0, -1] = count
    return row


def _combined(row: Tensor, process_set: ProcessSet, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, biased variance and number of values over all ranks."""
    rows = synchronize(allgather_async(row, name=f"sync_batch_norm.forward.{number}", process_set=process_set))
    channels = row.shape[1] // 2
    means, deviations, counts = rows[:, :channels], rows[:, channels:-1], rows[:, -1:]
    count = counts.sum()
    divisor = count.clamp(min=1)
    mean = (means * counts).sum(0) / divisor
    squares = deviations + counts * (means - mean) ** 2  # squared deviations from the common mean
    return mean, squares.sum(0) / divisor, count


def _widened(tensor: Tensor) -> Tensor:
    """Convert to the dtype of the computation: float32 for half-precision types, else the tensor's own."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _cast(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else tensor.to(dtype)


def _other_dims(tensor: Tensor) -> list[int]:
    return [0, *range(2, tensor.dim())]


def _along_channels(per_channel: Tensor, like: Tensor) -> Tensor:
    return per_channel.to(like.dtype).view(1, -1, *[1] * (like.dim() - 2))
