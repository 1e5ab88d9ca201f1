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
        """The values of all ranks, one after the other along the first dimension, in which they may differ."""
        return _impl.allgather(self._keras, value, name)

    def broadcast(self, value: Any, root_rank: int, name: str | None = None) -> Any:
        """The value of the root."""
        return _impl.broadcast(self._keras, value, root_rank, name)

    def reducescatter(self, value: Any, name: str | None = None, op: int = Average) -> Any:
        """Reduce over all ranks; each gets its share of the rows."""
        return _impl.reducescatter(self._keras, value, name, op)

    def broadcast_global_variables(self, root_rank: int) -> Any:
        """The variables of a TensorFlow 1 graph; elsewhere use BroadcastGlobalVariablesCallback."""
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
        """A DistributedOptimizer that leaves the weights of `local_layers` to each rank alone."""
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
        """keras.models.load_model with a DistributedOptimizer around the optimizer of the model, its state included."""

        def wrap(optimizer: Any) -> Any:
            return distributed_optimizer(optimizer, compression=compression)

        return _impl.load_model(keras, wrap, filepath, custom_optimizers, custom_objects, legacy_opts)

    return load_model
