# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: an optimizer of the user's own class whose gradients are reduced over all ranks."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from horovod.common.calls import ALLREDUCE, Call
from horovod.common.compression_methods import CompressionMethod, Dgc
from horovod.common.context import default_context
from horovod.common.exceptions import HorovodDeprecationWarning
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.supported_methods import given_method, unmatched
from horovod.common.util import split_list
from horovod.common.wire import wire_of
from horovod.torch.adasum_optimizer import _DistributedAdasumOptimizer, make_adasum_optimizer
from horovod.torch.compressing.hook import CompressionHook
from horovod.torch.compression import Compression, Compressor
from horovod.torch.functions import broadcast_object
from horovod.torch.gradients.buckets import GradientBuckets
from horovod.torch.gradients.gradient import Reduction
from horovod.torch.gradients.homes import gradient_homes
from horovod.torch.gradients.known_optimizers import describe
from horovod.torch.gradients.overlap import overlaps
from horovod.torch.gradients.reducer import GradientReducer
from horovod.torch.hooks.registration import register_comm_hook
from horovod.torch.mpi_ops import Adasum, Average, Sum, size
from horovod.torch.mpi_ops import allreduce_async_ as allreduce_async_
from horovod.torch.mpi_ops import grouped_allreduce_async_ as grouped_allreduce_async_
from horovod.torch.mpi_ops import rocm_built as rocm_built
from horovod.torch.mpi_ops import sparse_allreduce_async as sparse_allreduce_async
from horovod.torch.mpi_ops import synchronize as synchronize
from horovod.torch.parameter_names import name_parameters
from horovod.torch.reducing_optimizer import _DistributedOptimizer, check_passes
from horovod.torch.wrapping import DistributedOptimizerProtocol, Options, WrappedOptimizer, wrap

__all__ = [
    "Adasum",
    "Average",
    "DistributedOptimizer",
    "DistributedOptimizerProtocol",
    "Sum",
    "_DistributedAdasumOptimizer",
    "_DistributedOptimizer",
]

Tensor = torch.Tensor
Closure = Callable[[], Any]
Groups = int | Sequence[Sequence[Tensor]]


def DistributedOptimizer(  # noqa: N802 - the contract's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] | CompressionMethod = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    gradient_as_bucket_view: bool = False,
) -> WrappedOptimizer:
    """Wrap an optimizer so that it reduces gradients over all ranks of the process set before each step.

    Reductions start while backward() is still running and are complete when it returns; with
    HOROVOD_TORCH_WAIT_IN_BACKWARD=0 they may continue until step(). To clip gradients, call optimizer.synchronize() and
    then step() inside `with optimizer.skip_synchronize():`.

    Args:
        optimizer: The optimizer to wrap.
        named_parameters: What model.named_parameters() returns. The names appear in messages and timelines. By default
            they are made from positions.
        compression: hvd.Compression.none, fp16 or bf16, your own subclass of hvd.Compressor, or a method with arguments
            such as hvd.Compression.int8().
        backward_passes_per_step: Number of backward passes whose gradients are accumulated before they are reduced.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        gradient_predivide_factor: Divide gradients by this factor before the reduction, and by the rest of the number
            of ranks afterwards. It needs op=hvd.Average.
        num_groups: Older argument for a number of groups; use `groups`.
        groups: Number of groups in which gradients are reduced, or a list of lists of tensors, each of which is reduced
            as one unit.
        sparse_as_dense: Convert sparse gradients to dense ones before the reduction.
        process_set: The ranks that take part. By default all ranks of the job.
        gradient_as_bucket_view: Keep gradients in memory that the ranks of a host, or of a GPU, share.

    Returns:
        An optimizer of a class with the same name, which shares state and parameter groups with the original.

    Raises:
        ValueError: The optimizer is wrapped already, or arguments do not fit together.
        TypeError: `compression` is a class of a method with arguments, without parentheses.

    Example:
        >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
        >>> optimizer = hvd.DistributedOptimizer(optimizer)
    """
    method = _method_in(compression, op)
    if isinstance(compression, CompressionMethod):
        compression = Compression.none
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor needs op=hvd.Average")
    check_passes(backward_passes_per_step)
    if num_groups:
        warnings.warn("num_groups is deprecated: use groups", HorovodDeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    named = name_parameters(optimizer, named_parameters)
    options = Options(
        compression, backward_passes_per_step, op, gradient_predivide_factor, sparse_as_dense, process_set
    )
    if op == Adasum and size() > 1:
        return make_adasum_optimizer(optimizer, named, options)

    wrapped = wrap(optimizer, _DistributedOptimizer, named, options)
    wrapped._should_synchronize, wrapped._synchronized, wrapped._reducer = True, False, None
    if _reduces(process_set) or (isinstance(method, Dgc) and process_set.included()):
        factors = 1.0 / gradient_predivide_factor, gradient_predivide_factor
        call = Call(ALLREDUCE, process_set, None, op, *factors, in_place=True, wire=wire_of(compression))
        reduction = Reduction(call, compression, sparse_as_dense)
        wait = default_context.settings.flag("HOROVOD_TORCH_WAIT_IN_BACKWARD")
        parameters = [parameter for _, parameter in named]
        buckets = GradientBuckets(parameters, process_set) if gradient_as_bucket_view else None
        overlap = overlaps()
        homes = None if gradient_as_bucket_view else gradient_homes(reduction.plain_dtypes, call.wire, overlap.on_host)
        wrapped._reducer = GradientReducer(
            reduction,
            named,
            backward_passes_per_step,
            wait,
            overlap,
            buckets,
            homes,
            default_context.settings.flag("HOROVOD_CHECK_PARAMETERS"),
            describe(optimizer),
        )
        weakref.finalize(wrapped, GradientReducer.unwatch, wrapped._reducer)
        if groups:
            wrapped._reducer.make_groups(_agree_on_groups(groups, named, process_set))
    if method is not None:
        _compress(wrapped, method)
    return wrapped


def _method_in(compression: Any, op: int) -> CompressionMethod | None:
    """Return the compression if a communication hook applies it, or None for a Compressor."""
    method = given_method(compression)
    if method is not None and op not in (Average, Sum):
        raise ValueError(f"compression={method.describe()} supports op=hvd.Average and op=hvd.Sum only")
    return method


def check_exclude(optimizer: WrappedOptimizer, method: CompressionMethod) -> None:
    """Raise ValueError if a pattern of `exclude` matches no parameter of the optimizer."""
    for problem in unmatched(method, optimizer._parameter_names.values(), "parameter"):
        raise ValueError(problem)


def _compress(optimizer: WrappedOptimizer, method: CompressionMethod) -> None:
    check_exclude(optimizer, method)
    if isinstance(method, Dgc) and any(group.get("momentum") for group in optimizer.param_groups):
        raise ValueError(
            f"compression={method.describe()} accumulates the momentum itself: give the optimizer momentum=0, and its "
            "momentum to hvd.Compression.dgc(momentum=...)"
        )
    register_comm_hook(optimizer, CompressionHook(method))


def _reduces(process_set: ProcessSet) -> bool:
    """Return True if this rank has other ranks to reduce with, now or after an elastic reset."""
    default_context.topology  # noqa: B018 - says that hvd.init() is missing
    if not process_set.included():
        return False
    return (process_set.size() or 0) > 1 or default_context.settings.flag("HOROVOD_ELASTIC")


def _agree_on_groups(groups: Groups, named: list[tuple[str, Tensor]], process_set: ProcessSet) -> list[list[str]]:
    """Return rank 0's groups, as lists of names because ranks may list their parameters in different orders."""
    mine = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups must not be negative, but is {groups}")
        parts = split_list([name for name, _ in mine], min(groups, len(mine)))
    else:
        names = {parameter: name for name, parameter in mine}
        listed = [parameter for group in groups for parameter in group]
        if any(not isinstance(parameter, Tensor) for parameter in listed):
            raise ValueError("groups must be a number of groups, or a list of lists of parameters")
        if _DistributedOptimizer.find_duplicates(listed):
            raise ValueError("groups contains a parameter twice")
        parts = [[names[parameter] for parameter in group if parameter in names] for group in groups]
    root = process_set.ranks[0] if process_set.ranks else 0
    agreed = broadcast_object([list(part) for part in parts if part], root, "optimizer.groups", process_set)
    unknown = {name for part in agreed for name in part} - {name for name, _ in named}
    if unknown:
        raise ValueError(f"Rank {root} groups parameters that this rank does not have: {', '.join(sorted(unknown))}")
    return [list(part) for part in agreed]
