# SPDX-License-Identifier: Apache-2.0
"""How a list of gradients becomes that of all ranks: written once for the tape and the optimizers.

By default all gradients of a step travel as one group: one negotiation, one call, and no order to disagree about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from horovod.common.context import default_context
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import split_list
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.mpi_ops import Average
from horovod.tensorflow.reductions import divided_by_size, grouped_allreduce
from horovod.tensorflow.util import ref_of, vars_to_refs


@dataclass(frozen=True)
class GradientReduction:
    """The options of a tape or an optimizer; call it with gradients, and their variables where `groups` names some."""

    device_dense: str = ""
    device_sparse: str = ""
    compression: type[Compressor] = Compression.none
    sparse_as_dense: bool = False
    op: int = Average
    gradient_predivide_factor: float = 1.0
    groups: Any = None
    process_set: ProcessSet = global_process_set
    scope: str = "DistributedGradients"

    def __post_init__(self) -> None:
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor splits the averaging in two, so it works only with op=Average")

    def __call__(
        self, gradients: Sequence[Any], variables: Sequence[Any] | None = None, name: str | None = None
    ) -> list[Any]:
        """Reduced gradients in the same order; None stays None."""
        result = [dense(gradient) if self.sparse_as_dense else gradient for gradient in gradients]
        if acts_alone(self.process_set):
            return result
        present = [index for index, gradient in enumerate(result) if gradient is not None]
        with tf.name_scope(self.scope):
            for number, members in enumerate(self._partition(present, variables)):
                stem = f"{name}.{number}" if name else None
                for index, reduced in zip(members, self._reduce([result[i] for i in members], stem), strict=True):
                    result[index] = reduced
        return result

    def _reduce(self, gradients: list[Any], name: str | None) -> list[Any]:
        factor = self.gradient_predivide_factor
        sparse = [index for index, gradient in enumerate(gradients) if isinstance(gradient, tf.IndexedSlices)]
        if factor == 1.0 or not sparse:
            return self._reduce_all(gradients, name, factor)
        # The factors cancel out: slices, which know none, can do without.
        result = list(gradients)
        others = [index for index in range(len(gradients)) if index not in set(sparse)]
        for part, its_factor in ((sparse, 1.0), (others, factor)):
            reduced = self._reduce_all([gradients[index] for index in part], name, its_factor)
            for index, gradient in zip(part, reduced, strict=True):
                result[index] = gradient
        return result

    def _reduce_all(self, gradients: list[Any], name: str | None, factor: float) -> list[Any]:
        return list(
            grouped_allreduce(
                gradients,
                device_dense=self.device_dense,
                device_sparse=self.device_sparse,
                compression=self.compression,
                op=self.op,
                prescale_factor=1.0 / factor,
                postscale_factor=float(factor),
                process_set=self.process_set,
                name=name,
            )
        )

    def _partition(self, present: list[int], variables: Sequence[Any] | None) -> list[list[int]]:
        """Places of the gradients, one list for each group; what no group names makes up the last one."""
        if not present:
            return []
        if self.groups is None:
            return [present]
        if isinstance(self.groups, int):
            return [list(part) for part in split_list(present, min(self.groups, len(present)))]
        assert variables is not None, "groups of variables need the variables of the gradients"
        place = {ref_of(variables[index]): index for index in present}
        named = [[place[ref] for ref in vars_to_refs(list(group)) if ref in place] for group in self.groups]
        grouped = {index for group in named for index in group}
        rest = [index for index in present if index not in grouped]
        return [group for group in [*named, rest] if group]


def checked_groups(groups: Any, num_groups: int = 0) -> Any:
    """The `groups` of a call as None, a positive number or lists of variables; ValueError for anything else."""
    if groups is None:
        groups = num_groups
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups < 0:
            raise ValueError(f"groups must be a number of groups or a list of lists of variables; {groups} is neither")
        return groups or None
    if not isinstance(groups, (list, tuple)) or not all(isinstance(group, (list, tuple)) for group in groups):
        raise ValueError(f"groups must be a number of groups or a list of lists of variables, not {groups!r}")
    refs = [ref for group in groups for ref in vars_to_refs(list(group))]
    if len(refs) != len(set(refs)):
        raise ValueError("groups names a variable twice: each gradient is reduced once")
    return groups


def dense(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def acts_alone(process_set: ProcessSet) -> bool:
    """Whether there is nobody to reduce with. What an elastic job traces must also serve when workers have come."""
    if process_set.included() is False:
        return True
    elastic = default_context.settings.flag("HOROVOD_ELASTIC") and not tf.executing_eagerly()
    return process_set.size() == 1 and not elastic


def scaled_local(gradient: Any, process_set: ProcessSet) -> Any:
    """A gradient that stays on its rank, in the scale of those that are averaged over all."""
    if gradient is None or acts_alone(process_set):
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        values = divided_by_size(gradient.values, process_set)
        return tf.IndexedSlices(values, gradient.indices, dense_shape=gradient.dense_shape)
    return divided_by_size(gradient, process_set)


class LocalVariables:
    """The variables whose gradients stay on their rank, and the reduction of all others."""

    def __init__(self, reduction: Any, process_set: ProcessSet, scale_local_gradients: bool) -> None:
        self._reduction = reduction
        self._process_set = process_set
        self._scale = scale_local_gradients
        self._refs: set[Any] = set()

    def register(self, variable: Any) -> None:
        self._refs.add(ref_of(variable))

    def __contains__(self, variable: Any) -> bool:
        return bool(self._refs) and ref_of(variable) in self._refs

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any], **options: Any) -> list[Any]:
        """Gradients of global variables reduced, of local ones scaled, in the order given."""
        if not self._refs:
            return list(self._reduction(gradients, variables, **options))
        shared = [index for index, variable in enumerate(variables) if variable not in self]
        reduced = self._reduction(
            [gradients[index] for index in shared], [variables[index] for index in shared], **options
        )
        result = [scaled_local(gradient, self._process_set) if self._scale else gradient for gradient in gradients]
        for index, gradient in zip(shared, reduced, strict=True):
            result[index] = gradient
        return result
