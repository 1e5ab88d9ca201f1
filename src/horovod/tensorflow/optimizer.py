# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer for tf.compat.v1 optimizers; horovod.tensorflow.keras wraps those of Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.adasum_optimizer import _DistributedAdasumOptimizer
from horovod.tensorflow.compressing import Memories, no_method
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.gradients import GradientReduction, LocalVariables, checked_groups
from horovod.tensorflow.mpi_ops import Adasum, Average, rank

_LegacyOptimizer = tf.compat.v1.train.Optimizer


class _DistributedOptimizer(_LegacyOptimizer):  # type: ignore[misc, valid-type]
    """Optimizer whose compute_gradients returns gradients reduced over all ranks."""

    def __init__(
        self,
        optimizer: Any,
        name: str | None = None,
        use_locking: bool = False,
        device_dense: str = "",
        device_sparse: str = "",
        compression: type[Compressor] = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        name = name or f"Distributed{type(optimizer).__name__}"
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        reduction = GradientReduction(
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            groups=groups,
            process_set=process_set,
            scope=f"{name}_Allreduce",
            remedy="which 0 * tf.reduce_sum(variable) in the loss turns into zeros",
            function="DistributedOptimizer",
            memories=Memories(),
        )
        if reduction.compressed is not None:  # a tf.train.Checkpoint of the optimizer saves its memories
            self._track_trackable(reduction.memories, "horovod_compression")
        self._local = LocalVariables(reduction, process_set, scale_local_gradients)
        self._agg_helper: LocalGradientAggregationHelper | None = None
        if backward_passes_per_step != 1:
            if tf.executing_eagerly():
                raise ValueError(
                    "backward_passes_per_step > 1 with a tf.compat.v1 optimizer works only in graphs: "
                    "use a Keras optimizer in eager mode"
                )
            self._agg_helper = LocalGradientAggregationHelper(
                backward_passes_per_step,
                reduction,
                sparse_as_dense,
                average_aggregated_gradients,
                rank(),
                LocalGradientAggregationHelper.OPTIMIZER_TYPE_LEGACY,
                process_set,
                scale_local_gradients,
                name,
            )

    def register_local_var(self, var: Any) -> None:
        """Exclude a variable's gradient from the reduction; by default it is still divided by the number of ranks."""
        self._local.register(var)
        if self._agg_helper is not None:
            self._agg_helper.register_local_var(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return the optimizer's (gradient, variable) pairs, with gradients reduced over all ranks."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        reduce = self._agg_helper.compute_gradients if self._agg_helper else self._local.reduce
        return list(zip(reduce(gradients, variables), variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: str | None = None
    ) -> Any:
        def apply() -> Any:
            return self._optimizer.apply_gradients(grads_and_vars, global_step=global_step, name=name)

        if self._agg_helper is None:
            return apply()
        return self._agg_helper.apply_gradients(apply, self, grads_and_vars, global_step=global_step)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(  # noqa: N802 - the contract's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return an optimizer that reduces gradients over all ranks before it applies them.

    An optimizer of tf.compat.v1 is wrapped. For an optimizer of Keras, a new one of its class is returned, as by
    horovod.tensorflow.keras.

    Args:
        optimizer: An optimizer of Keras or of tf.compat.v1.train.
        name: Name of the optimizer, which ranks also match.
        use_locking: As in tf.compat.v1.train.Optimizer. It has no effect on Keras's optimizers.
        device_dense: Device for operations on dense tensors. By default TensorFlow chooses.
        device_sparse: Device for operations on tf.IndexedSlices. By default TensorFlow chooses.
        compression: hvd.Compression.none, fp16 or bf16, hvd.Compression.int8(), hvd.Compression.powersgd(), or your own
            subclass of hvd.Compressor.
        sparse_as_dense: Convert sparse gradients to dense ones before the reduction.
        backward_passes_per_step: Number of backward passes whose gradients are accumulated before they are reduced.
        op: hvd.Average (the default) or hvd.Sum; for tf.compat.v1 also hvd.Adasum.
        gradient_predivide_factor: Divide gradients by this factor before the reduction, and by the rest of the number
            of ranks afterwards. It needs op=hvd.Average.
        average_aggregated_gradients: Divide accumulated gradients by backward_passes_per_step.
        num_groups: Older argument for a number of groups; use `groups`.
        groups: Number of groups in which gradients are reduced, or a list of lists of variables. By default all
            gradients are one group.
        process_set: The ranks that take part. By default all ranks of the job.
        scale_local_gradients: Divide the gradients of variables that stay on this rank by the number of ranks.

    Returns:
        The distributed optimizer.

    Raises:
        ValueError: The first argument is no optimizer, or arguments do not fit together.
        NotImplementedError: op is hvd.Adasum, and `process_set` is not the set of all ranks.

    Example:
        >>> optimizer = tf.keras.optimizers.SGD(0.1 * hvd.size())
        >>> optimizer = hvd.DistributedOptimizer(optimizer)
    """
    groups = checked_groups(groups, num_groups)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor splits the averaging in two, so it works only with op=Average")
    shared: dict[str, Any] = {
        "device_dense": device_dense,
        "device_sparse": device_sparse,
        "compression": compression,
        "backward_passes_per_step": backward_passes_per_step,
    }
    if isinstance(optimizer, _LegacyOptimizer) and op == Adasum:
        no_method(compression, "DistributedOptimizer with op=hvd.Adasum")
        if average_aggregated_gradients:
            raise ValueError("Adasum combines steps, not gradients: average_aggregated_gradients has no meaning for it")
        if process_set is not global_process_set:
            raise NotImplementedError("Adasum works only on the global process set")
        return _DistributedAdasumOptimizer(optimizer, name, use_locking, **shared)
    shared |= {
        "sparse_as_dense": sparse_as_dense,
        "op": op,
        "gradient_predivide_factor": gradient_predivide_factor,
        "average_aggregated_gradients": average_aggregated_gradients,
        "groups": groups,
        "process_set": process_set,
        "scale_local_gradients": scale_local_gradients,
    }
    if isinstance(optimizer, _LegacyOptimizer):
        return _DistributedOptimizer(optimizer, name, use_locking, **shared)
    if op == Adasum:
        raise ValueError("op=hvd.Adasum is for tf.compat.v1 optimizers; Keras optimizers take hvd.Average and hvd.Sum")
    if not hasattr(optimizer, "apply_gradients") or not hasattr(optimizer, "get_config"):
        raise ValueError(
            f"DistributedOptimizer takes a Keras or tf.compat.v1 optimizer; {type(optimizer).__name__} is neither"
        )
    from horovod.tensorflow import keras as hvd_keras  # imported late, because only scripts that use Keras need it

    return hvd_keras.DistributedOptimizer(optimizer, name=name, **shared)
