# SPDX-License-Identifier: Apache-2.0
"""Gradients summed over the ranks of a set, in place. The mean comes with the optimizer's rescale_grad."""

from __future__ import annotations

from typing import Any

from horovod.common.process_sets import ProcessSet
from horovod.common.util import split_list
from horovod.mxnet.adapter import NDArray
from horovod.mxnet.compression import Compression
from horovod.mxnet.mpi_ops import Sum, allreduce_, grouped_allreduce_

Named = list[tuple[str, int, NDArray]]  # name, priority, gradient


class Reducer:
    """How an optimizer or a trainer has its gradients reduced.

    `scale` is what makes the mean of the sum: rescale_grad is multiplied by it, which costs nothing.
    """

    def __init__(
        self, predivide: float, num_groups: int, process_set: ProcessSet, compression: Any = Compression.none
    ) -> None:
        if predivide <= 0:
            raise ValueError(f"gradient_predivide_factor must be a positive number, not {predivide}")
        self._prescale = 1.0 / predivide
        self._num_groups = num_groups
        self._set = process_set
        self._compression = compression
        size = process_set.size()
        if size is None:
            raise ValueError(f"{process_set} is not registered: call hvd.init() first")
        self.active = size > 1 and bool(process_set.included())
        self.scale = predivide / size if self.active else 1.0

    def reduce(self, named: Named) -> None:
        """Earlier layers have higher priority: the next forward pass needs them first."""
        if not self.active or not named:
            return
        compressed = [self._compression.compress(gradient) for _, _, gradient in named]
        sent = [(name, priority, array) for (name, priority, _), (array, _) in zip(named, compressed, strict=True)]
        for group in split_list(sent, min(self._num_groups, len(sent))) if self._num_groups > 0 else []:
            names, priorities, arrays = zip(*group, strict=True)
            name = f"{names[0]}:{names[-1]}"
            grouped_allreduce_(list(arrays), name=name, priority=priorities[0], **self._options())
        for name, priority, array in sent if self._num_groups <= 0 else []:
            allreduce_(array, name=name, priority=priority, **self._options())
        for (_, _, gradient), (array, ctx) in zip(named, compressed, strict=True):
            if array is not gradient:
                self._compression.decompress(array, ctx).copyto(gradient)

    def _options(self) -> dict[str, Any]:
        return {"op": Sum, "prescale_factor": self._prescale, "process_set": self._set}
