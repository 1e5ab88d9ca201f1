# SPDX-License-Identifier: Apache-2.0
"""Gradient tapes that reduce their gradients over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.gradients import GradientReduction, LocalVariables, checked_groups
from horovod.tensorflow.mpi_ops import Average


class _DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    """Tape that continues the recording of another tape and reduces its gradients."""

    def __init__(
        self,
        tape: Any,
        device_dense: str,
        device_sparse: str,
        compression: type[Compressor],
        sparse_as_dense: bool,
        op: int,
        gradient_predivide_factor: float,
        groups: Any,
        persistent: bool = False,
        watch_accessed_variables: bool = True,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        tf.GradientTape.__init__(self, persistent, watch_accessed_variables)
        self.__dict__.update(tape.__dict__)
        reduction = GradientReduction(
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            groups=groups,
            process_set=process_set,
            scope="DistributedGradientTape_Allreduce",
            remedy="which unconnected_gradients=tf.UnconnectedGradients.ZERO turns into zeros",
        )
        self._local = LocalVariables(reduction, process_set, scale_local_gradients)

    def register_local_source(self, source: Any) -> None:
        """Exclude a variable's gradient from the reduction; by default it is still divided by the number of ranks."""
        self._local.register(source)

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Return the gradients as tf.GradientTape.gradient does, reduced over all ranks.

        Args:
            use_generic_names: Name the reduction "gradients" because variable names differ between ranks.
        """
        found = super().gradient(target, sources, output_gradients, unconnected_gradients)
        gradients, variables = tf.nest.flatten(found), tf.nest.flatten(sources)
        reduced = self._local.reduce(gradients, variables, name="gradients" if use_generic_names else None)
        return tf.nest.pack_sequence_as(sources, reduced)

    def get_local_and_global_gradients(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Return two lists of (variable, gradient): registered local sources, and others with reduced gradients."""
        variables = tf.nest.flatten(sources)
        gradients = tf.nest.flatten(self.gradient(target, sources, output_gradients, use_generic_names))
        pairs = list(zip(variables, gradients, strict=True))
        return [pair for pair in pairs if pair[0] in self._local], [
            pair for pair in pairs if pair[0] not in self._local
        ]


def DistributedGradientTape(  # noqa: N802 - the contract's name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap a gradient tape so that gradient() returns gradients reduced over all ranks.

    Ranks compare what they reduce. If they differ in variables, shapes, or which gradients are None, all of them raise
    an error that names the variables.

    Args:
        gradtape: The tape to wrap, before or after its recording.
        device_dense: Device for operations on dense tensors. By default TensorFlow chooses.
        device_sparse: Device for operations on tf.IndexedSlices. By default TensorFlow chooses.
        compression: hvd.Compression.none, fp16 or bf16, hvd.Compression.int8(), hvd.Compression.powersgd(), or your own
            subclass of hvd.Compressor.
        sparse_as_dense: Convert sparse gradients to dense ones before the reduction.
        op: hvd.Average (the default) or another reduce operation.
        gradient_predivide_factor: Divide gradients by this factor before the reduction, and by the rest of the number
            of ranks afterwards. It needs op=hvd.Average.
        num_groups: Older argument for a number of groups; use `groups`.
        groups: Number of groups in which gradients are reduced, or a list of lists of variables. By default all
            gradients are one group.
        process_set: The ranks that take part. By default all ranks of the job.
        scale_local_gradients: Divide the gradients of variables that stay on this rank by the number of ranks.

    Returns:
        A tape of a class derived from that of `gradtape`, with what that has recorded.

    Raises:
        ValueError: The first argument is not a tape, or other arguments are not valid.

    Example:
        >>> variable = tf.Variable(1.0 + hvd.rank())
        >>> with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        ...     loss = variable**2
        >>> float(tape.gradient(loss, variable))  # on 2 ranks: 3.0
    """
    kind = type(gradtape)
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(f"DistributedGradientTape is made from a tf.GradientTape, not from {kind.__name__}")
    base = _DistributedGradientTape
    cls = base if kind is tf.GradientTape else type(kind.__name__, (base, kind), {})
    return cls(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        checked_groups(groups, num_groups),
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedGradientTape(  # noqa: N802 - the contract's name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap a gradient tape as DistributedGradientTape() does, but leave the gradients of some layers on their rank.

    Args:
        gradtape: The tape to wrap, before or after its recording.
        device_dense: Device for operations on dense tensors. By default TensorFlow chooses.
        device_sparse: Device for operations on tf.IndexedSlices. By default TensorFlow chooses.
        compression: hvd.Compression.none, fp16 or bf16, hvd.Compression.int8(), hvd.Compression.powersgd(), or your own
            subclass of hvd.Compressor.
        sparse_as_dense: Convert sparse gradients to dense ones before the reduction.
        op: hvd.Average (the default) or another reduce operation.
        gradient_predivide_factor: Divide gradients by this factor before the reduction, and by the rest of the number
            of ranks afterwards. It needs op=hvd.Average.
        num_groups: Older argument for a number of groups; use `groups`.
        groups: Number of groups in which gradients are reduced, or a list of lists of variables. By default all
            gradients are one group.
        process_set: The ranks that take part. By default all ranks of the job.
        local_layers: A Keras layer, or a list of layers.
        scale_local_gradients: Divide the gradients of variables that stay on this rank by the number of ranks.

    Returns:
        A tape of a class derived from that of `gradtape`, with what that has recorded.

    Raises:
        ValueError: The first argument is not a tape, or `local_layers` holds something else than layers.

    Example:
        >>> layer = tf.keras.layers.Dense(1)
        >>> tape = hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=layer)
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for layer in _layers(local_layers):
        for weight in layer.trainable_weights:
            tape.register_local_source(weight)
    return tape


def _layers(local_layers: Any) -> Sequence[Any]:
    if local_layers is None:
        return []
    layers = list(local_layers) if isinstance(local_layers, (list, tuple, set)) else [local_layers]
    strangers = [layer for layer in layers if not hasattr(layer, "trainable_weights")]
    if strangers:
        raise ValueError(f"local_layers must be Keras layers; {strangers[0]!r} is not")
    return layers
