# SPDX-License-Identifier: Apache-2.0
"""Elastic training with JAX: hvd.elastic.run, and JaxState, which holds trees of arrays and plain values."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import jax

from horovod.common.checkpoint import checkpoint as checkpoint
from horovod.common.elastic import State, check_names, run_fn
from horovod.common.slots import Slots, check_arrays
from horovod.jax import on_gpu
from horovod.jax.adapter import Tree
from horovod.jax.errors import translated_errors
from horovod.jax.functions import broadcast_object, broadcast_parameters
from horovod.jax.mpi_ops import init, rank, shutdown
from horovod.jax.rank_state import in_present_world, shared_leaves, with_shared_leaves

__all__ = ["JaxState", "run"]


class JaxState(State):
    """State of a training with JAX, for hvd.elastic.run().

    Every keyword becomes an attribute. Assign new values to the attributes, then commit() saves them. sync() gives all
    ranks what rank 0 saved last.

    Args:
        **kwargs: Trees of arrays, such as parameters and optimizer states, or any Python values.

    Example:
        >>> state = hvd.elastic.JaxState(params=jnp.zeros(2), step=0)
        >>> state.step += 1
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(broadcast_object, rank)
        self._names = list(kwargs)
        self._slots = Slots(_copy_leaf)
        for name, value in kwargs.items():
            setattr(self, name, value)
        JaxState.save(self)

    @property
    def _saved(self) -> dict[str, Any]:
        leaves, form = self._slots.current
        found: dict[str, Any] = jax.tree_util.tree_unflatten(form.treedef, leaves)
        return found

    def save(self) -> None:
        leaves, _ = self._slots.prepare(_taken_apart({name: getattr(self, name) for name in self._names}))
        on_gpu.confirm(leaves)
        self._slots.keep()

    def restore(self) -> None:
        for name, value in self._saved.items():
            setattr(self, name, _copy(value))

    def reset(self) -> None:
        """Adapt state that belongs to this rank to the new ranks, because sync() may not be called afterwards."""
        for name in self._names:
            value = getattr(self, name)
            if _holds_arrays(value):
                setattr(self, name, in_present_world(value))

    def sync(self) -> None:
        """Give all ranks the state that rank 0 saved last: broadcast arrays, send all other values as objects."""
        saved = self._saved
        plain = {name: value for name, value in saved.items() if not _holds_arrays(value)}
        trees = {name: value for name, value in saved.items() if name not in plain}
        received = {**broadcast_object(plain, 0, "elastic.values"), **broadcast_parameters(trees, 0, "elastic.arrays")}
        self._slots.put(_taken_apart({name: received[name] for name in self._names}))
        self.restore()

    def pin_commit(self) -> dict[str, Any]:
        """Return plain values, and trees of arrays as lists of leaves, because the program knows their structure."""
        self._slots.pin()
        saved = self._saved
        plain = {name: value for name, value in saved.items() if not _holds_arrays(value)}
        leaves = {name: shared_leaves(value) for name, value in saved.items() if name not in plain}
        return {"values": plain, "trees": leaves}

    def release_commit(self) -> None:
        self._slots.release()

    def load_commit(self, content: dict[str, Any]) -> None:
        check_names("values", [*content["values"], *content["trees"]], self._names)
        loaded = dict(content["values"])
        for name, leaves in content["trees"].items():
            present = getattr(self, name)
            check_arrays(leaves, shared_leaves(present))
            loaded[name] = with_shared_leaves(present, leaves)
        self._slots.put(_taken_apart({name: loaded[name] for name in self._names}))
        self.restore()


class _Form:
    """Structure of a tree, without its leaves."""

    def __init__(self, treedef: Any) -> None:
        self.treedef = treedef


def _taken_apart(tree: Tree) -> tuple[list[Any], _Form]:
    leaves, treedef = jax.tree_util.tree_flatten(tree)
    return leaves, _Form(treedef)


@functools.partial(jax.jit, donate_argnums=0, keep_unused=True)
def _copied_into(old: Any, value: Any) -> Any:
    """Copy `value` into the memory of `old`, an earlier copy that is no longer needed."""
    return jax.numpy.copy(value)


def _copy_leaf(old: Any, value: Any) -> Any:
    """Copy an array (slots.CopyLeaf). A reference is not enough, because jitted steps may delete donated arrays."""
    if isinstance(value, _Form) or callable(value):
        return value
    if not isinstance(value, jax.Array):
        return NotImplemented
    if _fits(old, value):
        return _copied_into(old, value)
    return value.copy()


def _fits(old: Any, value: Any) -> bool:
    if not isinstance(old, jax.Array) or old.shape != value.shape or old.dtype != value.dtype:
        return False
    plain = not jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended) and value.is_fully_addressable
    return plain and old.sharding == value.sharding and not old.is_deleted()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function, so that training continues from the last commit when workers come or go.

    Before the function is called, all ranks receive the state of rank 0, unless workers have only left. If a rank is
    lost, the state is restored and the function is called again. Run no collective before the decorated function,
    because a new worker would run it alone.

    Args:
        func: A function whose first argument is the state, such as `train(state)`.

    Returns:
        The decorated function. It returns what `func` returns.

    Raises:
        HorovodMismatchError: The decorated function: the ranks disagree, which a restart cannot mend.
        HorovodInitializationError: The decorated function: the remaining ranks could not meet again.
        HorovodCheckpointError: The decorated function: training cannot continue from its checkpoints.

    Example:
        >>> train = hvd.elastic.run(lambda state: state.step + 1)
        >>> train(hvd.elastic.JaxState(step=0))  # on 2 ranks: 1
    """

    @functools.wraps(func)
    def translated(state: JaxState, *args: Any, **kwargs: Any) -> Any:
        with translated_errors():
            return func(state, *args, **kwargs)

    return run_fn(translated, _reset)


def _reset() -> None:
    shutdown()
    init()


def _holds_arrays(value: Any) -> bool:
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree_util.tree_leaves(value))


def _copy(value: Tree) -> Tree:
    """Return a separate copy, because a jitted step deletes arrays that are donated to it (donate_argnums)."""
    return jax.tree_util.tree_map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else _deep(leaf), value)


def _deep(leaf: Any) -> Any:
    return leaf if callable(leaf) else copy.deepcopy(leaf)
