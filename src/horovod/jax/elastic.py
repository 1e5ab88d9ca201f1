# SPDX-License-Identifier: Apache-2.0
"""Elastic training with JAX: hvd.elastic.run and JaxState, which holds trees of arrays and plain values alike."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import jax

from horovod.common.elastic import State, run_fn
from horovod.jax.adapter import Tree
from horovod.jax.errors import translated_errors
from horovod.jax.functions import broadcast_object, broadcast_parameters
from horovod.jax.mpi_ops import init, rank, shutdown

__all__ = ["JaxState", "run"]


class JaxState(State):
    """Every keyword becomes an attribute: trees of arrays (parameters, optimizer state, keys), or plain values.

    Training replaces the attributes, as JAX's way is: `state.params = new_params`; `state.commit()` keeps them.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(broadcast_object, rank)
        self._saved: dict[str, Any] = {}
        for name, value in kwargs.items():
            setattr(self, name, value)
            self._saved[name] = _copy(value)

    def save(self) -> None:
        self._saved = {name: _copy(getattr(self, name)) for name in self._saved}

    def restore(self) -> None:
        for name, value in self._saved.items():
            setattr(self, name, _copy(value))

    def sync(self) -> None:
        """Make what rank 0 saved last the state of all: arrays as they are, everything else as objects."""
        plain = {name: value for name, value in self._saved.items() if not _holds_arrays(value)}
        trees = {name: value for name, value in self._saved.items() if name not in plain}
        self._saved.update(broadcast_object(plain, 0, "elastic.values"))
        self._saved.update(broadcast_parameters(trees, 0, "elastic.arrays"))
        self.restore()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function `func(state, ...)`: it goes on from the last commit when workers come or go."""

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
    """A copy of its own: a jitted step that is given an array to keep (donate_argnums) deletes it."""
    return jax.tree_util.tree_map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else _deep(leaf), value)


def _deep(leaf: Any) -> Any:
    return leaf if callable(leaf) else copy.deepcopy(leaf)
