# SPDX-License-Identifier: Apache-2.0
"""Functions built on the operations: send parameters and objects from one rank to all, and make keys for each rank."""

from __future__ import annotations

import numbers
from typing import Any

import jax
import numpy as np

from horovod.common.context import default_context
from horovod.common.objects import allgather_object as allgather_object
from horovod.common.objects import broadcast_object as broadcast_object
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.jax.adapter import JaxArray, Tree
from horovod.jax.mpi_ops import broadcast
from horovod.jax.rank_state import in_present_world, is_rank_state


def broadcast_parameters(
    params: Tree, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tree:
    """Return a tree with the values of one rank.

    Arrays are immutable, so use what the function returns. Leaves that are neither arrays nor PRNG keys nor numbers
    stay as they are.

    Args:
        params: A tree, for example of a model's parameters.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this call.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A tree of the same structure.

    Raises:
        HorovodMismatchError: The trees of the ranks differ.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> params = hvd.broadcast_parameters({'w': jnp.zeros(2) + hvd.rank()}, root_rank=1)
        >>> params['w'].tolist()  # on 2 ranks: [1.0, 1.0]
    """
    leaves, structure = jax.tree_util.tree_flatten(in_present_world(params), is_leaf=is_rank_state)
    keys = [_is_key(leaf) for leaf in leaves]
    plain = [jax.random.key_data(leaf) if key else leaf for leaf, key in zip(leaves, keys, strict=True)]
    arrays = [index for index, leaf in enumerate(plain) if isinstance(leaf, (jax.Array, np.ndarray, np.generic))]
    scalars = [index for index, leaf in enumerate(plain) if isinstance(leaf, numbers.Number) and index not in arrays]
    stem = name or "parameters"
    if arrays:
        sent = broadcast([plain[index] for index in arrays], root_rank, stem, process_set)
        for index, value in zip(arrays, sent, strict=True):
            plain[index] = (
                jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaves[index])) if keys[index] else value
            )
    if scalars:
        values = broadcast_object([plain[index] for index in scalars], root_rank, f"{stem}.scalars", process_set)
        for index, value in zip(scalars, values, strict=True):
            plain[index] = value
    return structure.unflatten(plain)


def broadcast_optimizer_state(
    optimizer_state: Tree, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tree:
    """Return the state of an optimizer with the values of one rank.

    Arrays are immutable, so use what the function returns. What compression keeps for one rank is not sent.

    Args:
        optimizer_state: What the optimizer's init() or update() returned.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this call.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A tree of the same structure.

    Raises:
        HorovodMismatchError: The states of the ranks differ.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> state = optax.adam(0.1).init(jnp.zeros(2))
        >>> state = hvd.broadcast_optimizer_state(state)
    """
    return broadcast_parameters(optimizer_state, root_rank, name or "optimizer_state", process_set)


def fold_in_rank(key: JaxArray) -> JaxArray:
    """Return a PRNG key of this rank's own, for dropout and other values that must differ between ranks.

    Args:
        key: A key that is equal on all ranks.

    Returns:
        The key of this rank.

    Raises:
        HorovodNotInitializedError: Call hvd.init() first.

    Example:
        >>> key = hvd.fold_in_rank(jax.random.PRNGKey(0))
        >>> jax.random.normal(key, (2,)).shape  # on 2 ranks: (2,)
    """
    return jax.random.fold_in(key, default_context.topology.rank)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and bool(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))
