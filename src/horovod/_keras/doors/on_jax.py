# SPDX-License-Identifier: Apache-2.0
"""Adapter for Keras on JAX, over horovod.jax: in eager mode, and inside the training step that Keras compiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

import horovod.jax as hvd  # imported before Keras starts JAX's backend
from horovod._keras.state import KerasModelState
from horovod.common.calls import ALLREDUCE, Call
from horovod.common.process_sets import ProcessSet
from horovod.common.supported_methods import method_in
from horovod.jax import Compression as Compression
from horovod.jax import allgather as allgather
from horovod.jax import allreduce as allreduce
from horovod.jax import broadcast as broadcast
from horovod.jax import on_gpu
from horovod.jax import reducescatter as reducescatter
from horovod.jax.elastic import run as run
from horovod.jax.mpi_ops import run_call

State = KerasModelState


def tensor(value: Any) -> Any:
    return jnp.asarray(value)


def is_sparse(gradient: Any) -> bool:
    return hasattr(gradient, "todense")


def dense(gradient: Any) -> Any:
    return gradient.todense() if is_sparse(gradient) else gradient


def divided_by_size(gradient: Any, process_set: ProcessSet) -> Any:
    return gradient / (process_set.size() or 1)


def is_tracing() -> bool:
    return True  # JAX traces both branches of a condition, also outside of jit


def reduce_group(
    tensors: Sequence[Any],
    name: str,
    *,
    op: int,
    prescale: float,
    postscale: float,
    compression: Any,
    process_set: ProcessSet,
    contents: str = "",
) -> list[Any]:
    """Reduce the gradients; outside of compiled programs, ranks also compare the contents of the group.

    Inside compiled programs no gradient is None, because JAX returns zeros for variables that the loss does not use.
    """
    gradients = [dense(gradient) for gradient in tensors] or [jnp.zeros(0)]
    call = Call(ALLREDUCE, process_set, name, op, prescale, postscale, grouped=True, contents=contents)
    return list(run_call(call, gradients, compression))[: len(tensors)]


def compressed_by(compression: Any, op: int) -> None:
    """Refuse compression methods, because the training step that Keras compiles cannot store their state."""
    method_in(compression, (), "hvd.DistributedOptimizer of Keras on JAX", op)


def confirm(variables: Sequence[Any]) -> None:
    on_gpu.confirm([variable.value for variable in variables])


def broadcast_variables(variables: Sequence[Any], root_rank: int, name: str) -> None:
    sent = hvd.broadcast([variable.value for variable in variables], root_rank, name) if variables else []
    for variable, value in zip(variables, sent, strict=True):
        variable.assign(value)
