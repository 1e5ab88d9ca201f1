# SPDX-License-Identifier: Apache-2.0
"""Optimizer that sums its gradients over all ranks before each update, for Module and for custom training loops."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet.gradients import Named, Reducer


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]  # MXNet has no types
    """Optimizer that sums each gradient over all ranks before it updates the parameter.

    The `rescale_grad` of the wrapped optimizer holds the division by the number of ranks. Use it with Module.fit() and
    in your own training loops; for gluon, use hvd.DistributedTrainer.

    Args:
        optimizer: The optimizer to wrap, of mx.optimizer.
        gradient_predivide_factor: Divide gradients by this factor before they are summed, and by the rest of the number
            of ranks afterwards.
        num_groups: Number of groups in which gradients are reduced. 0 makes no groups.
        process_set: The ranks that take part. By default all ranks of the job.

    Example:
        >>> optimizer = mx.optimizer.SGD(learning_rate=0.1)
        >>> optimizer = hvd.DistributedOptimizer(optimizer)
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        # super().__init__ is not called, because every attribute is the wrapped optimizer's.
        self._optimizer = optimizer
        self._reducer = Reducer(gradient_predivide_factor, num_groups, process_set)
        optimizer.rescale_grad *= self._reducer.scale

    def __getattr__(self, item: str) -> Any:
        if item == "_optimizer":  # there is no `_optimizer` yet during unpickling
            raise AttributeError(item)
        return getattr(self._optimizer, item)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "A hvd.DistributedOptimizer cannot be copied or pickled. Copy the optimizer before you wrap it, and wrap "
            "the copy with hvd.DistributedOptimizer(copy)"
        )

    def unwrap(self) -> Any:
        """Return the wrapped optimizer.

        Returns:
            The optimizer, with its original rescale_grad.
        """
        self._optimizer.rescale_grad /= self._reducer.scale
        return self._optimizer

    def create_state(self, index: Any, weight: Any) -> Any:
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._reducer.reduce(_named(index, grad))
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._reducer.reduce(_named(index, grad))
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        self._optimizer.set_wd_mult(args_wd_mult)


def _named(index: Any, grad: Any) -> Named:
    """Return name, priority and gradient of each parameter. An updater passes one parameter or lists."""
    if not isinstance(index, (list, tuple)):
        return [(str(index), _priority(index), grad)]
    return [(str(one), _priority(one), gradient) for one, gradient in zip(index, grad, strict=True)]


def _priority(index: Any) -> int:
    return -index if isinstance(index, int) else 0
