# SPDX-License-Identifier: Apache-2.0
"""Selection of the gradients of a step that are reduced over the ranks, their groups, and the groups' names.

This code serves every version and backend of Keras. A module of `doors` reduces one group with the backend's API.
"""

from __future__ import annotations

import collections
import hashlib
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from horovod.common.context import default_context
from horovod.common.exceptions import HorovodDeprecationWarning
from horovod.common.group_contents import GradientOf, described, name_of_keras_variable
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.rules import OP_NAMES, Average, Min, Sum
from horovod.common.util import split_list

MEMORIES = "horovod_compression"  # the name of the compression's memories in a tf.train.Checkpoint
_REMEDY = "which 0 * keras.ops.sum(variable) in the loss turns into zeros"


class _Identities:
    """Names of the optimizers of a world, by which each is matched with its counterparts on the other ranks.

    An optimizer is identified by its variables: their own names and numbers of dimensions, in order. Names of layers do
    not count, because Keras numbers layers by what else the process has created. Sizes do not count, so that ranks
    whose sizes differ get an error about the mismatch. Optimizers that are equal in all this are numbered by first use.
    Each process set counts from 0, because a rank does not use sets that it is not in. So ranks may create optimizers
    in different orders, and may leave some unused.
    """

    def __init__(self) -> None:
        self.world = 0
        self._used: collections.Counter[str] = collections.Counter()
        default_context.observe(self)

    def new(self, name: str, variables: Sequence[Any], process_set: ProcessSet) -> str:
        described = ",".join(f"{_own_name(variable)}:{len(variable.shape)}" for variable in variables)
        stem = f"{name}.{hashlib.sha256(described.encode()).hexdigest()[:8]}"
        if process_set is not global_process_set:  # a graph may hold operations of several sets, so names must differ
            stem += f".set{process_set.process_set_id}"
        number = self._used[stem]
        self._used[stem] += 1
        return f"{stem}.{number}"

    def bound(self, process_set: ProcessSet) -> None:
        """Reset the numbers in each world, so that in an elastic job new ranks and those that stayed count equally."""
        if process_set is global_process_set:
            self.world += 1
            self._used.clear()

    def unbound(self, process_set: ProcessSet) -> None:
        pass


def _own_name(variable: Any) -> str:
    """Return the name of a variable in its layer: kernel for sequential_1/dense_2/kernel and dense_2/kernel:0."""
    last = str(getattr(variable, "name", "")).rpartition("/")[2].partition(":")[0]
    return re.sub(r"_\d+$", "", last)


_identities = _Identities()


@dataclass
class GradientReduction:
    """Checked options of a DistributedOptimizer; call it with gradients and their variables."""

    door: Any
    name: str
    compression: Any
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    op: int = Average
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    groups: Any = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    local_layers: Sequence[Any] = ()
    key: Callable[[Any], Any] = id  # returns the key that identifies a variable
    # Keys of variables whose gradients are already reduced and wait to be applied.
    reduced: set[Any] = field(default_factory=set)
    left_to_others: bool = False  # True while a LossScaleOptimizer computes gradients and will reduce them itself
    compressed: Any = None  # what the backend's module made of a compression that is a method
    _local: set[Any] = field(default_factory=set)
    _first_seen: dict[Any, int] = field(default_factory=dict)
    _world: int = -1  # number of the world that _wire_name is for
    _wire_name: str = ""
    # The variables and kinds of gradients that _last_contents describes.
    _last_given: list[Any] = field(default_factory=list)
    _last_contents: str = ""

    def __post_init__(self) -> None:
        if self.op not in (Average, Sum):
            name = OP_NAMES[self.op] if self.op in range(len(OP_NAMES)) else repr(self.op)
            raise ValueError(f"A Keras DistributedOptimizer averages gradients or sums them; op={name} is neither")
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor splits the averaging in two, so it works only with op=Average")
        if self.backward_passes_per_step < 1:
            raise ValueError(f"backward_passes_per_step must be at least 1, not {self.backward_passes_per_step}")
        self.compressed = self.door.compressed_by(self.compression, self.op)

    def wire_name(self, variables: Sequence[Any]) -> str:
        """Return the name of this optimizer's operations in this world; its first variables determine the name."""
        if self._world != _identities.world:
            self._world = _identities.world
            self._wire_name = _identities.new(self.name, variables, self.process_set)
        return self._wire_name

    @property
    def divisor(self) -> int:
        """Return the divisor for gradients summed over several passes; it is applied before the reduction."""
        return self.backward_passes_per_step if self.average_aggregated_gradients else 1

    def register_local_var(self, variable: Any) -> None:
        self._local.add(self.key(variable))

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the reduced gradients in the same order; None stays None, and local gradients stay on their rank."""
        result = self.checked(gradients)
        applies_momentum = getattr(self.compressed, "acts_alone", False) and self.process_set.included()
        if acts_alone(self.process_set) and not applies_momentum:
            return result
        name, local = self.wire_name(variables), self._local_keys()
        shared = [index for index, variable in enumerate(variables) if self.key(variable) not in local]
        if self.scale_local_gradients:
            for index in set(range(len(result))).difference(shared):
                if result[index] is not None:
                    result[index] = self.door.divided_by_size(result[index], self.process_set)
        if self.compressed is not None:
            self.compressed.check([variables[index] for index in shared], [result[index] for index in shared])
        contents = self._contents([result[index] for index in shared], [variables[index] for index in shared])
        # Count gradients that are None, so that ranks on which others are None have equal groups.
        for group in self._groups(shared, variables):
            present = [index for index in group if result[index] is not None]
            group_name = f"{name}.{self._number(variables[group[0]])}"
            reduced = self._reduce(
                [result[index] for index in present], [variables[index] for index in present], group_name, contents
            )
            for index, gradient in zip(present, reduced, strict=True):
                result[index] = gradient
        return result

    def _contents(self, gradients: Sequence[Any], variables: Sequence[Any]) -> str:
        """Return the contents that ranks compare: the variables, and whether each gradient is dense, sparse or None."""
        kinds = [self._kind(gradient) for gradient in gradients]
        given = list(zip(map(self.key, variables), kinds, strict=True))
        if given != self._last_given:
            sources = [
                GradientOf(name_of_keras_variable(variable), str(variable.shape), kind)
                for variable, kind in zip(variables, kinds, strict=True)
            ]
            self._last_given, self._last_contents = given, described(sources, _REMEDY)
        return self._last_contents

    def _kind(self, gradient: Any) -> str:
        return "None" if gradient is None else "sparse" if self.door.is_sparse(gradient) else "dense"

    def checked(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the gradients, converted to dense ones if sparse_as_dense is set."""
        if not self.sparse_as_dense:
            return list(gradients)
        return [None if gradient is None else self.door.dense(gradient) for gradient in gradients]

    def all_finite(self, finite: Any, variables: Sequence[Any]) -> Any:
        """Return 1 if every rank found its gradients finite, else 0, as a tensor; `finite` is this rank's 0 or 1."""
        if acts_alone(self.process_set):
            return finite
        [least] = self.door.reduce_group(
            [finite],
            f"{self.wire_name(variables)}.finite",
            op=Min,
            prescale=1.0,
            postscale=1.0,
            compression=self.door.Compression.none,
            process_set=self.process_set,
        )
        return least

    def _reduce(self, gradients: list[Any], variables: list[Any], name: str, contents: str) -> list[Any]:
        if self.compressed is not None:  # compression divides after the sum, so that the factors cancel out
            group = {"process_set": self.process_set, "contents": contents}
            found: list[Any] = self.door.reduce_compressed(self.compressed, gradients, variables, name, **group)
            return found
        factor = float(self.gradient_predivide_factor)
        sparse = [self.door.is_sparse(gradient) for gradient in gradients]
        if factor != 1.0 and any(sparse):  # slices are gathered, which supports no factors
            gradients = [self.door.dense(gradient) for gradient in gradients]
        reduced: list[Any] = self.door.reduce_group(
            gradients,
            name,
            op=self.op,
            prescale=1.0 / factor,
            postscale=factor,
            compression=self.compression,
            process_set=self.process_set,
            contents=contents,
        )
        return reduced

    def _local_keys(self) -> set[Any]:
        # Compute the keys at each call, because layers may get their weights only with the first batch.
        layers = {self.key(variable) for layer in self.local_layers for variable in layer.trainable_weights}
        return self._local | layers

    def _groups(self, shared: list[int], variables: Sequence[Any]) -> list[list[int]]:
        if not shared:
            return []
        if self.groups is None:
            return [shared]
        if isinstance(self.groups, int):
            return [list(part) for part in split_list(shared, min(self.groups, len(shared)))]
        place = {self.key(variables[index]): index for index in shared}
        named = [[place.pop(self.key(one)) for one in group if self.key(one) in place] for group in self.groups]
        return [group for group in named if group] + [[index] for index in place.values()]

    def _number(self, variable: Any) -> int:
        """Return the number of the group that begins with this variable. No other group of a step begins with it."""
        return self._first_seen.setdefault(self.key(variable), len(self._first_seen))


def follow_memories(optimizer: Any, reduction: GradientReduction) -> None:
    """Make a tf.train.Checkpoint of an optimizer save its compression's memories, if the backend is TensorFlow."""
    if reduction.compressed is not None and hasattr(optimizer, "_track_trackable"):
        optimizer._track_trackable(reduction.compressed.memories, MEMORIES)


def checked_groups(groups: Any, num_groups: int = 0) -> Any:
    """Return the `groups` of a call as None, a positive number or lists of variables; raise ValueError otherwise."""
    if num_groups:
        warnings.warn("num_groups is deprecated: use groups", HorovodDeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None or (isinstance(groups, int) and groups >= 0):
        return groups or None
    if isinstance(groups, (list, tuple)) and all(isinstance(group, (list, tuple)) for group in groups):
        return groups or None
    raise ValueError(f"groups must be a number of groups or a list of lists of variables, not {groups!r}")


def acts_alone(process_set: ProcessSet) -> bool:
    """Return True if this rank has no other rank to reduce with.

    What an elastic job compiles must also work with more workers, so the number of ranks does not count there.
    """
    elastic = default_context.settings.flag("HOROVOD_ELASTIC")
    if process_set is global_process_set:
        return default_context.topology.size == 1 and not elastic  # raises an error if hvd.init() was not called
    if process_set.size() is None:
        raise ValueError(f"{process_set} is not registered: pass it to hvd.init() or hvd.add_process_set()")
    return not process_set.included() or process_set.size() == 1
