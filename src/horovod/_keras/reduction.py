# SPDX-License-Identifier: Apache-2.0
"""What happens to the gradients of a step: which are reduced over the ranks, in which groups, under which names.

The same for every version and backend of Keras; a door knows how one group is reduced.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from horovod.common.context import default_context
from horovod.common.exceptions import HorovodDeprecationWarning
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.rules import OP_NAMES, Average, Min, Sum
from horovod.common.util import split_list


class _Numbers:
    """Numbers of optimizers in the order in which they are made, which is the same on all ranks.

    Reductions of several optimizers may be in flight together and must then have different names. The numbers begin
    again with each world: in an elastic job, who stayed and who just came count alike.
    """

    def __init__(self) -> None:
        self._next = itertools.count()
        default_context.observe(self)

    def next(self) -> int:
        return next(self._next)

    def bound(self, process_set: ProcessSet) -> None:
        if process_set is global_process_set:
            self._next = itertools.count()

    def unbound(self, process_set: ProcessSet) -> None:
        pass


_numbers = _Numbers()


@dataclass
class GradientReduction:
    """The options of a DistributedOptimizer, checked; call it with gradients and their variables."""

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
    key: Callable[[Any], Any] = id  # what tells one variable from another
    reduced: set[Any] = field(default_factory=set)  # by key, variables whose gradients wait to be applied as they are
    left_to_others: bool = False  # while somebody else will see to it
    _local: set[Any] = field(default_factory=set)
    _first_seen: dict[Any, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.op not in (Average, Sum):
            name = OP_NAMES[self.op] if self.op in range(len(OP_NAMES)) else repr(self.op)
            raise ValueError(f"A Keras DistributedOptimizer averages gradients or sums them; op={name} is neither")
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor splits the averaging in two, so it works only with op=Average")
        if self.backward_passes_per_step < 1:
            raise ValueError(f"backward_passes_per_step must be at least 1, not {self.backward_passes_per_step}")
        self.name = f"{self.name}.{_numbers.next()}"

    @property
    def divisor(self) -> int:
        """What sums of several passes are divided by before they are reduced."""
        return self.backward_passes_per_step if self.average_aggregated_gradients else 1

    def register_local_var(self, variable: Any) -> None:
        self._local.add(self.key(variable))

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Gradients of all ranks in the same order; None stays None, and local ones stay on their rank."""
        result = self.checked(gradients)
        if acts_alone(self.process_set):
            return result
        local = self._local_keys()
        present = [index for index, gradient in enumerate(result) if gradient is not None]
        shared = [index for index in present if self.key(variables[index]) not in local]
        if self.scale_local_gradients:
            for index in set(present).difference(shared):
                result[index] = self.door.divided_by_size(result[index], self.process_set)
        for group in self._groups(shared, variables):
            reduced = self._reduce([result[index] for index in group], self._group_name(variables[group[0]]))
            for index, gradient in zip(group, reduced, strict=True):
                result[index] = gradient
        return result

    def checked(self, gradients: Sequence[Any]) -> list[Any]:
        """The gradients as they are reduced: dense, where that is asked for or cannot be helped."""
        if not self.sparse_as_dense:
            return list(gradients)
        return [None if gradient is None else self.door.dense(gradient) for gradient in gradients]

    def all_finite(self, finite: Any) -> Any:
        """Whether every rank found its gradients finite: a tensor of 0 or 1 from one of 0 or 1."""
        if acts_alone(self.process_set):
            return finite
        [least] = self.door.reduce_group(
            [finite],
            f"{self.name}.finite",
            op=Min,
            prescale=1.0,
            postscale=1.0,
            compression=self.door.Compression.none,
            process_set=self.process_set,
        )
        return least

    def _reduce(self, gradients: list[Any], name: str) -> list[Any]:
        factor = float(self.gradient_predivide_factor)
        sparse = [self.door.is_sparse(gradient) for gradient in gradients]
        if factor != 1.0 and any(sparse):  # slices are gathered, which knows no factors
            gradients = [self.door.dense(gradient) for gradient in gradients]
        reduced: list[Any] = self.door.reduce_group(
            gradients,
            name,
            op=self.op,
            prescale=1.0 / factor,
            postscale=factor,
            compression=self.compression,
            process_set=self.process_set,
        )
        return reduced

    def _local_keys(self) -> set[Any]:
        # Asked each time: layers may get their weights only when they see the first batch.
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

    def _group_name(self, variable: Any) -> str:
        """A name for the group that begins with this variable; other calls of the same step begin with another."""
        number = self._first_seen.setdefault(self.key(variable), len(self._first_seen))
        return f"{self.name}.{number}"


def checked_groups(groups: Any, num_groups: int = 0) -> Any:
    """The `groups` of a call as None, a positive number or lists of variables; ValueError for anything else."""
    if num_groups:
        warnings.warn("num_groups is deprecated: use groups", HorovodDeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None or (isinstance(groups, int) and groups >= 0):
        return groups or None
    if isinstance(groups, (list, tuple)) and all(isinstance(group, (list, tuple)) for group in groups):
        return groups or None
    raise ValueError(f"groups must be a number of groups or a list of lists of variables, not {groups!r}")


def acts_alone(process_set: ProcessSet) -> bool:
    """Whether there is nobody to reduce with. What an elastic job compiles must also serve when workers have come."""
    elastic = default_context.settings.flag("HOROVOD_ELASTIC")
    if process_set is global_process_set:
        return default_context.topology.size == 1 and not elastic  # says so where hvd.init() was forgotten
    if process_set.size() is None:
        raise ValueError(f"{process_set} is not registered: pass it to hvd.init() or hvd.add_process_set()")
    return not process_set.included() or process_set.size() == 1
