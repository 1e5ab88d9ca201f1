# SPDX-License-Identifier: Apache-2.0
"""State that a rank keeps of compressed gradients between steps, as variables keyed by the gradients' variables.

An optimizer owns its memories. A tape is recreated for each step, so its memories are stored with the variables.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from horovod.tensorflow.util import tf_variable

Values: TypeAlias = dict[str, npt.NDArray[Any]]

_OWN = "_horovod_own"  # marks variables that differ between ranks, so that they are not broadcast
_MEMORIES = "_horovod_memories"
_NO_OWNER = (-1, -1, -1, -1)


class Memory(tf.Module):  # type: ignore[misc]
    """Variables of one exchange. `owner` identifies the share that the residuals are of: see exchange_plan.Plan."""

    def __init__(self, initial: Mapping[str, Any]) -> None:
        """Create the variables from `initial`, values by name.

        Residuals start empty; their length depends on the hosts.
        """
        super().__init__(name="horovod_memory")
        object.__setattr__(self, "last_graph", None)  # weak reference to the graph that used it last
        object.__setattr__(self, "initial", dict(initial) | {"owner": np.array(_NO_OWNER, np.int32)})
        with tf.init_scope():
            for name, value in self.initial.items():
                shape = [None] if name.startswith("residual") else None
                variable = tf.Variable(value, trainable=False, shape=shape, name=f"horovod_{name}")
                setattr(variable, _OWN, True)
                setattr(self, name, variable)

    def still_valid(self, name: str, owner: Any, count: Any) -> Any:
        """Return a residual as a tensor; zeros if it belongs to another share."""
        kept = getattr(self, name).read_value()
        is_ours = tf.reduce_all(tf.equal(self.owner.read_value(), owner)) & tf.equal(tf.size(kept), count)
        return tf.cond(is_ours, lambda: kept, lambda: tf.zeros([count]))

    def keep(self, is_finite: Any, **values: Any) -> list[Any]:
        """Assign new values if the result is finite. Return the assignments, so that a graph can wait for them."""
        return [
            getattr(self, name).assign(
                tf.cond(is_finite, lambda v=value: v, lambda n=name: getattr(self, n).read_value())
            )
            for name, value in values.items()
        ]

    def values(self) -> Values:
        """Return copies of all values."""
        return {name: np.array(getattr(self, name).numpy()) for name in self.initial}

    def take(self, values: Values | None) -> None:
        """Assign what `values` returned; None stands for the initial values."""
        for name, value in (self.initial if values is None else values).items():
            getattr(self, name).assign(value)


class Memories(tf.Module):  # type: ignore[misc]
    """Memories by key. As a module it can be part of a tf.train.Checkpoint."""

    def __init__(self) -> None:
        super().__init__(name="horovod_memories")
        object.__setattr__(self, "all", {})  # hidden from TensorFlow's tracking, which requires names as keys

    def find(self, key: Hashable, initial: Callable[[], Mapping[str, Any]]) -> Memory:
        """Return the memory of a key; create it at the first call."""
        known: dict[Hashable, Memory] = self.all
        if key not in known:
            memory = Memory(initial())
            known[key] = memory
            setattr(self, f"group{len(known)}", memory)
        return known[key]


def memories_of(variables: Sequence[Any]) -> Memories:
    """Return the memories that belong to variables. The first variable holds them, so that they live as long as it."""
    holder = tf_variable(variables[0])
    if not hasattr(holder, _MEMORIES):
        setattr(holder, _MEMORIES, Memories())
    found: Memories = getattr(holder, _MEMORIES)
    return found


def memories_on(variables: Sequence[Any]) -> list[Memory]:
    """Return all memories that tapes have made for any of the variables."""
    holders = [getattr(tf_variable(variable), _MEMORIES, None) for variable in variables]
    return [memory for memories in holders if memories is not None for memory in memories.all.values()]


class SavedMemories:
    """Copies of memories for a commit: `prepare` makes them, `keep` replaces the earlier copies with them."""

    def __init__(self) -> None:
        self._prepared: list[tuple[Memory, Values]] = []
        self._kept: list[tuple[Memory, Values]] = []

    def prepare(self, memories: Sequence[Memory]) -> None:
        """Copy the values of memories."""
        self._prepared = [(memory, memory.values()) for memory in memories]

    def keep(self) -> None:
        """Make the prepared copies those that `restore` uses."""
        self._kept = self._prepared

    def restore(self, memories: Sequence[Memory]) -> None:
        """Restore the values of memories at the last `keep`; reset memories that are newer."""
        kept = {id(memory): values for memory, values in self._kept}
        for memory in memories:
            memory.take(kept.get(id(memory)))


def is_own(variable: Any) -> bool:
    """Return True if each rank has a value of its own for the variable, so that it must not be broadcast."""
    return hasattr(variable, _OWN)
