# SPDX-License-Identifier: Apache-2.0
"""Functions of both Keras APIs, made for the keras module that an API names.

Functions whose parameter order or defaults differ between the two APIs are defined in each API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod import _keras as _impl
from horovod._keras.doors import door_of
from horovod._keras.reduction import checked_groups
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.rules import Average


class Functions:
    """Functions that need only the keras module; the APIs export the bound methods."""

    def __init__(self, keras: Any) -> None:
        self._keras = keras

    def allgather(self, value: Any, name: str | None = None) -> Any:
        """Concatenate the values of all ranks along the first dimension.

        Args:
            value: An array or a tensor. It may differ between ranks in its first dimension only.
            name: Name under which the ranks match this operation. Operations without a name match in the order of the
                calls in their process set.

        Returns:
            A tensor of Keras's backend.

        Raises:
            HorovodInternalError: A rank failed or left the job. On TensorFlow, an error of tf.errors.

        Example:
            >>> value = [float(hvd.rank())]
            >>> np.asarray(hvd.allgather(value)).tolist()  # on 2 ranks: [0.0, 1.0]
        """
        return _impl.allgather(self._keras, value, name)

    def broadcast(self, value: Any, root_rank: int, name: str | None = None) -> Any:
        """Send one rank's value to all ranks.

        Args:
            value: The root's value. The other ranks pass a value of the same shape and type.
            root_rank: The rank that sends its values, counted among all ranks of the job.
            name: Name under which the ranks match this operation. Operations without a name match in the order of the
                calls in their process set.

        Returns:
            A tensor of Keras's backend.

        Raises:
            HorovodInternalError: A rank failed or left the job. On TensorFlow, an error of tf.errors.

        Example:
            >>> value = float(hvd.rank())
            >>> float(hvd.broadcast(value, root_rank=1))  # on 2 ranks: 1.0
        """
        return _impl.broadcast(self._keras, value, root_rank, name)

    def reducescatter(self, value: Any, name: str | None = None, op: int = Average) -> Any:
        """Reduce a value over all ranks and return this rank's share of the rows.

        If the rows do not divide evenly, each of the first ranks gets one more.

        Args:
            value: An array or a tensor.
            name: Name under which the ranks match this operation. Operations without a name match in the order of the
                calls in their process set.
            op: hvd.Average (the default) or hvd.Sum.

        Returns:
            A tensor of Keras's backend.

        Raises:
            HorovodInternalError: A rank failed or left the job. On TensorFlow, an error of tf.errors.

        Example:
            >>> value = [1.0, 2.0]
            >>> np.asarray(hvd.reducescatter(value)).tolist()  # on rank 1 of 2: [2.0]
        """
        return _impl.reducescatter(self._keras, value, name, op)

    def broadcast_global_variables(self, root_rank: int) -> Any:
        """Return an operation that overwrites all global variables of a TensorFlow 1 graph with those of one rank.

        Elsewhere use hvd.callbacks.BroadcastGlobalVariablesCallback.

        Args:
            root_rank: The rank that sends its values, counted among all ranks of the job.

        Returns:
            The operation.

        Raises:
            RuntimeError: There is no graph of TensorFlow 1.

        Example:
            >>> callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
            >>> callbacks = [callback]  # for model.fit(..., callbacks=callbacks)
        """
        return _impl.broadcast_global_variables(self._keras, root_rank)


def partial_optimizer_for(keras: Any) -> Callable[..., Any]:
    """Return PartialDistributedOptimizer for an API; its default compression is that of Keras's backend."""
    uncompressed = door_of(keras).Compression.none

    def PartialDistributedOptimizer(  # noqa: N802 - the contract's name
        optimizer: Any,
        name: str | None = None,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = uncompressed,
        sparse_as_dense: bool = False,
        gradient_predivide_factor: float = 1.0,
        op: int = Average,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        groups: Any = None,
        process_set: ProcessSet = global_process_set,
        local_layers: Any = None,
        scale_local_gradients: bool = True,
    ) -> Any:
        """Return an optimizer as DistributedOptimizer() does, which leaves the gradients of some layers on their rank.

        Args:
            optimizer: The optimizer to wrap.
            name: Name of the optimizer, which ranks also match.
            device_dense: Has no effect.
            device_sparse: Has no effect.
            compression: hvd.Compression.none, fp16 or bf16, your own subclass of the backend's Compressor, or on
                TensorFlow and PyTorch a method with arguments such as hvd.Compression.int8().
            sparse_as_dense: Convert sparse gradients to dense ones before the reduction.
            gradient_predivide_factor: Divide gradients by this factor before the reduction, and by the rest of the
                number of ranks afterwards. It needs op=hvd.Average.
            op: hvd.Average (the default) or hvd.Sum.
            backward_passes_per_step: Number of backward passes whose gradients are accumulated before they are reduced.
            average_aggregated_gradients: Divide accumulated gradients by backward_passes_per_step.
            groups: Number of groups in which gradients are reduced, or a list of lists of variables. By default all
                gradients are one group.
            process_set: The ranks that take part. By default all ranks of the job.
            local_layers: A layer, or a list of layers.
            scale_local_gradients: Divide the gradients of variables that stay on this rank by the number of ranks.

        Returns:
            The new optimizer.

        Raises:
            ValueError: The first argument is no Keras optimizer or is wrapped already, or arguments are not valid.

        Example:
            >>> model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
            >>> optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=model.layers[-1])
        """
        several = isinstance(local_layers, (list, tuple, set))
        layers = local_layers if several else [local_layers] if local_layers else []
        return _impl.create_distributed_optimizer(
            keras,
            optimizer,
            name,
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            gradient_predivide_factor,
            op,
            backward_passes_per_step,
            average_aggregated_gradients,
            checked_groups(groups),
            process_set,
            scale_local_gradients,
            list(layers),
        )

    return PartialDistributedOptimizer


def load_model_for(keras: Any, distributed_optimizer: Callable[..., Any]) -> Callable[..., Any]:
    """Return load_model for an API; it uses the API's DistributedOptimizer."""
    uncompressed = door_of(keras).Compression.none

    def load_model(
        filepath: Any,
        custom_optimizers: Sequence[type] | None = None,
        custom_objects: Mapping[str, Any] | None = None,
        compression: Any = uncompressed,
        legacy_opts: bool = False,
    ) -> Any:
        """Load a model as keras.models.load_model() does, with a distributed optimizer.

        The optimizer has the state that was saved.

        Args:
            filepath: The file of the model.
            custom_optimizers: List of your own optimizer classes in the file.
            custom_objects: Other objects in the file, by name.
            compression: The argument of hvd.DistributedOptimizer().
            legacy_opts: Has no effect.

        Returns:
            The model. If the file holds no optimizer, the model is not compiled.

        Example:
            >>> model.save(path)  # a compiled model
            >>> model = hvd.load_model(path)
        """

        def wrap(optimizer: Any) -> Any:
            return distributed_optimizer(optimizer, compression=compression)

        return _impl.load_model(keras, wrap, filepath, custom_optimizers, custom_objects, legacy_opts)

    return load_model
