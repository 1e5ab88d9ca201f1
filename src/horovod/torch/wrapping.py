# SPDX-License-Identifier: Apache-2.0
"""Wrapping of an optimizer in a class on top of the user's, and what all such classes have in common."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol, TypeVar

import torch

from horovod.common import user_warnings
from horovod.common.process_sets import ProcessSet
from horovod.torch.compression import Compressor
from horovod.torch.layout import in_memory_order
from horovod.torch.mpi_ops import allreduce_async_, sparse_allreduce_async
from horovod.torch.parameter_names import Named, unnamed
from horovod.torch.sharing import NOT_SHARED, count_step, follow, share

Mixin = TypeVar("Mixin", bound="WrappedOptimizer")
# Horovod's module name, because libraries look for it in the class to avoid wrapping an optimizer twice.
_MODULE = "horovod.torch.optimizer"
_PLAIN_COPY = (
    "A copy of a hvd.DistributedOptimizer, made by copy or by pickle, is a plain {name}: it does not reduce gradients. "
    "Before you train with the copy, wrap it with hvd.DistributedOptimizer(copy, named_parameters=...). To keep and "
    "restore the state alone, use state_dict() and load_state_dict()."
)


class DistributedOptimizerProtocol(Protocol):
    """Attributes that a distributed optimizer has in addition to those of a torch optimizer; for annotations."""

    backward_passes_per_step: int
    op: int
    gradient_predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet

    def synchronize(self) -> None: ...

    def skip_synchronize(self) -> AbstractContextManager[None]: ...

    def set_backward_passes_per_step(self, passes: int) -> None: ...


@dataclass(frozen=True)
class Options:
    """Options given to DistributedOptimizer() that the optimizer shows as attributes."""

    compression: type[Compressor]
    backward_passes_per_step: int
    op: int
    gradient_predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet


class WrappedOptimizer(torch.optim.Optimizer):
    """Optimizer returned by hvd.DistributedOptimizer(), with the attributes of Horovod's."""

    backward_passes_per_step: int
    op: int
    gradient_predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet
    _compression: type[Compressor]
    _original: torch.optim.Optimizer  # the user's optimizer, which shares its parameter groups and its state
    _parameter_names: dict[torch.Tensor, str]

    def synchronize(self) -> None:
        """Complete the gradients on all ranks."""
        raise NotImplementedError

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Make step() inside this block use gradients as they are; for use after synchronize()."""
        raise NotImplementedError

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Accumulate gradients over this many backward passes before they are reduced."""
        raise NotImplementedError

    # Sharing with the original

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._take_over(self, self._original)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load state and options into this optimizer and the original."""
        super().load_state_dict(*args, **kwargs)
        self._take_over(self, self._original)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to this optimizer and the original."""
        super().add_param_group(param_group)
        self._watch_new_parameters()

    def _follow_original(self) -> None:
        """Take over what was loaded into the original, or added to it."""
        self._take_over(self._original, self)

    def _take_over(self, changed: torch.optim.Optimizer, kept: torch.optim.Optimizer) -> None:
        if share(changed, kept):
            self._forget_round()
        self._watch_new_parameters()

    def _watch_new_parameters(self) -> None:
        for number, group in enumerate(self.param_groups):
            for index, parameter in enumerate(group["params"]):
                if parameter not in self._parameter_names:
                    name = self._parameter_names[parameter] = unnamed(number, index)
                    self._watch(name, parameter)

    def _watch(self, name: str, parameter: torch.Tensor) -> None:
        """Combine this parameter's gradients with the other ranks' from now on."""
        raise NotImplementedError

    def _forget_round(self) -> None:
        """Drop the reductions of this round, because state was loaded."""

    def _count_step(self) -> None:
        count_step(self._original)

    # Copies

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.optim.Optimizer:
        self._warn_of_copy()
        return copy.deepcopy(self._original, memo)

    def __copy__(self) -> torch.optim.Optimizer:
        self._warn_of_copy()
        return copy.copy(self._original)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Let pickle store the original, in a form that loads without this package."""
        self._warn_of_copy()
        return itemgetter(0), ((self._original,),)

    def _warn_of_copy(self) -> None:
        user_warnings.warn(_PLAIN_COPY.format(name=type(self._original).__name__))

    # For libraries that reduce gradients by themselves

    def _allreduce_grad_async(self, p: torch.Tensor) -> tuple[Any, Any]:
        """Begin to reduce one gradient in place without hooks and rounds, for libraries that do so themselves.

        Return a handle for hvd.synchronize(), or for a sparse gradient a function that waits, and the compressor's
        context.
        """
        name, grad = self._parameter_names[p], p.grad
        if grad is None:
            grad = p.grad = torch.zeros_like(p, requires_grad=False)
        if grad.is_sparse and not self.sparse_as_dense:
            return sparse_allreduce_async(grad, name, self.op, self.process_set), None
        if grad.is_sparse:
            grad = p.grad = grad.to_dense()
        sent, context = self._compression.compress(grad)
        factors = 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor
        handle = allreduce_async_(in_memory_order(sent), None, name, self.op, *factors, self.process_set)
        return handle, context


def wrap(optimizer: torch.optim.Optimizer, mixin: type[Mixin], named: Named, options: Options) -> Mixin:
    """Return an optimizer with the given one's parameters, state and options, of a subclass with the same class name.

    isinstance() still holds. __init__ does not run, so classes whose constructors take any arguments can be wrapped.
    """
    if isinstance(optimizer, WrappedOptimizer):
        raise ValueError("This optimizer is already a hvd.DistributedOptimizer; wrap it only once")
    cls = optimizer.__class__
    made: Any = type(cls.__name__, (mixin, cls), {"__module__": _MODULE, "__doc__": cls.__doc__})
    wrapped: Mixin = made.__new__(made)
    # These attributes stay with the original, because in the wrapper they would bypass our methods.
    wrapped.__dict__.update({name: value for name, value in vars(optimizer).items() if name not in NOT_SHARED})
    wrapped._original = optimizer
    wrapped._parameter_names = {parameter: name for name, parameter in named}
    wrapped._compression = options.compression
    wrapped.backward_passes_per_step = options.backward_passes_per_step
    wrapped.op = options.op
    wrapped.gradient_predivide_factor = options.gradient_predivide_factor
    wrapped.sparse_as_dense = options.sparse_as_dense
    wrapped.process_set = options.process_set
    follow(optimizer, wrapped, WrappedOptimizer._follow_original)
    return wrapped
