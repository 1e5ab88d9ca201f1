# SPDX-License-Identifier: Apache-2.0
"""Accumulation of gradients in eager mode and tf.function, under Horovod's name; see accumulation.py."""

from __future__ import annotations

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.accumulation import AllreduceFunction, GradientAccumulation
from horovod.tensorflow.mpi_ops import size_op as size_op


class LocalGradientAggregationHelperEager(GradientAccumulation):
    """Accumulation for Keras optimizers."""

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: AllreduceFunction,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        super().__init__(
            backward_passes_per_step,
            allreduce_func,
            sparse_as_dense,
            average_aggregated_gradients,
            process_set,
            scale_local_gradients,
        )
