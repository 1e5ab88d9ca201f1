# SPDX-License-Identifier: Apache-2.0
"""gluon's Trainer whose gradients are summed over all ranks instead of through a kvstore."""

from __future__ import annotations

import warnings
from typing import Any

import mxnet as mx

from horovod.common.exceptions import HorovodWarning
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet.compression import Compression
from horovod.mxnet.gradients import Reducer
from horovod.mxnet.optimizer import DistributedOptimizer


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]  # MXNet has no types
    """Trainer of gluon that sums gradients over all ranks, instead of through a kvstore.

    Pass the batch size of this rank to step().

    Args:
        params: What network.collect_params() returns.
        optimizer: Name of an optimizer, or an optimizer that is not distributed.
        optimizer_params: Arguments of the optimizer, as a dict.
        compression: hvd.Compression.none or hvd.Compression.fp16, or your own subclass of hvd.Compressor.
        gradient_predivide_factor: Divide gradients by this factor before they are summed, and by the rest of the number
            of ranks afterwards.
        prefix: Prefix of the names under which ranks match. It keeps several trainers apart.
        num_groups: Number of groups in which gradients are reduced. 0 makes no groups.
        process_set: The ranks that take part. By default all ranks of the job.

    Example:
        >>> network = mx.gluon.nn.Dense(1, in_units=2)
        >>> network.initialize()
        >>> trainer = hvd.DistributedTrainer(network.collect_params(), 'sgd', {'learning_rate': 0.1})
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Any = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        self._prefix = prefix or ""
        self._reducer = Reducer(gradient_predivide_factor, num_groups, process_set, compression)
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer averages gradients itself: pass it the original optimizer, not a "
                "DistributedOptimizer",
                HorovodWarning,
                stacklevel=2,
            )
            optimizer = optimizer.unwrap()
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        self._scale *= self._reducer.scale

    def _allreduce_grads(self) -> None:
        trained = [(index, one) for index, one in enumerate(self._params) if one.grad_req != "null"]
        self._reducer.reduce(
            [(f"{self._prefix}{index}", -index, _gradient(parameter)) for index, parameter in trained],
            [parameter for _, parameter in trained],
        )


def _gradient(parameter: Any) -> Any:
    gradients = parameter.list_grad()
    if len(gradients) > 1:
        contexts = ", ".join(str(gradient.context) for gradient in gradients)
        raise ValueError(
            f"{parameter.name} lies in several contexts ({contexts}): start one rank for each context instead"
        )
    return gradients[0]
