# SPDX-License-Identifier: Apache-2.0
"""Reduction of a list of gradients over all ranks, used by the tape and the optimizers.

By default all gradients of a step are reduced as one group: with one negotiation, one call, and no order to agree on.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from horovod.common.context import default_context
from horovod.common.group_contents import GradientOf, described, name_of_keras_variable
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.supported_methods import method_in
from horovod.common.util import split_list
from horovod.tensorflow.calls import normalize_name
from horovod.tensorflow.compressing import METHODS, CompressedReduction, Memories
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.mpi_ops import Average
from horovod.tensorflow.reductions import divided_by_size, grouped_allreduce, reduce_dense
from horovod.tensorflow.util import on_device, ref_of, vars_to_refs


@dataclass(frozen=True)
class GradientReduction:
    """Options of a tape or an optimizer; call it with gradients, and with their variables if `groups` lists any."""

    device_dense: str = ""
    device_sparse: str = ""
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    op: int = Average
    gradient_predivide_factor: float = 1.0
    groups: Any = None
    process_set: ProcessSet = global_process_set
    scope: str = "DistributedGradients"
    function: str = "DistributedGradientTape"  # the user's function in error messages
    remedy: str = ""  # how to replace a gradient that is None by zeros, for error messages
    memories: Memories | None = None  # memories of an optimizer's compression; None: those stored with the variables
    compressed: CompressedReduction | None = field(init=False, default=None)  # reduction if the compression is a method

    def __post_init__(self) -> None:
        method = method_in(self.compression, METHODS, self.function, self.op)
        if method is not None:
            object.__setattr__(self, "compressed", CompressedReduction(method, self.op, self.memories))
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor splits the averaging in two, so it works only with op=Average")

    def __call__(
        self, gradients: Sequence[Any], variables: Sequence[Any] | None = None, name: str | None = None
    ) -> list[Any]:
        """Return the reduced gradients in the same order; None stays None if it is None on every rank."""
        result = [dense(gradient) if self.sparse_as_dense else gradient for gradient in gradients]
        suffix = _suffix_of(self.process_set)  # also counted on ranks outside the set, so that all ranks agree
        if acts_alone(self.process_set) or not result:
            return result
        sources = [
            _described(gradient, variable) for gradient, variable in zip(result, variables or result, strict=True)
        ]
        groups = self._partition(len(result), variables)
        unread = []  # results of groups that have no gradient on this rank
        if self.compressed is not None:
            self.compressed.check(variables or result, result)
        with tf.name_scope(_without_number(self.scope)):
            for number, members in enumerate(groups):
                part = f"; group {number + 1} of {len(groups)}" if len(groups) > 1 else ""
                group_name = f"{name}.{number}{suffix}" if name else _node_name(sources, members, suffix)
                group = _Group(group_name, described(sources, self.remedy, part))
                present = [index for index in members if result[index] is not None]
                places = [(variables or result)[index] for index in present]
                reduced, comparison = self._reduce([result[index] for index in present], places, group)
                unread += [] if present else [comparison]
                for index, gradient in zip(present, reduced, strict=True):
                    result[index] = gradient
        return _made_to_run(unread, result)

    def _reduce(self, gradients: list[Any], variables: list[Any], group: _Group) -> tuple[list[Any], Any]:
        """Reduce a group's dense gradients, then gather its slices; return all, and one result of the reduction.

        The reduction comes first, even if there are no dense gradients, because in it ranks compare the group's
        contents.
        """
        sparse = [index for index, gradient in enumerate(gradients) if isinstance(gradient, tf.IndexedSlices)]
        others = [index for index in range(len(gradients)) if index not in set(sparse)]
        result = list(gradients)
        with on_device(self.device_dense):
            reduced = self._reduce_dense([gradients[it] for it in others], [variables[it] for it in others], group)
        for index, gradient in zip(others, reduced, strict=False):
            result[index] = gradient
        if sparse:
            with tf.control_dependencies([] if tf.executing_eagerly() else reduced[:1]):
                gathered = self._gather([gradients[index] for index in sparse], group)
            for index, gradient in zip(sparse, gathered, strict=True):
                result[index] = gradient
        return result, reduced[0]

    def _reduce_dense(self, gradients: list[Any], variables: list[Any], group: _Group) -> list[Any]:
        """Return the reduced gradients; for an empty list one empty tensor, whose reduction compares the contents."""
        # Compression divides after the sum, so that the factors cancel out.
        if self.compressed is not None and gradients:
            reduced: list[Any] = self.compressed(
                gradients, variables, name=group.name, process_set=self.process_set, contents=group.contents
            )
            return reduced
        factor = float(self.gradient_predivide_factor)
        return reduce_dense(
            gradients or [tf.zeros([0])],
            self.compression if gradients else Compression.none,
            name=group.name,
            op=self.op,
            prescale_factor=1.0 / factor,
            postscale_factor=factor,
            process_set=self.process_set,
            contents=group.contents,
        )

    def _gather(self, slices: list[Any], group: _Group) -> list[Any]:
        """Gather slices. Predivide factors need not be applied, because they cancel out."""
        return list(
            grouped_allreduce(
                slices,
                device_sparse=self.device_sparse,
                compression=Compression.none if self.compressed else self.compression,
                op=self.op,
                process_set=self.process_set,
                name=group.name,
            )
        )

    def _partition(self, count: int, variables: Sequence[Any] | None) -> list[list[int]]:
        """Return the indices of the gradients of each group; the last group has the gradients that no group lists."""
        places = list(range(count))
        if self.groups is None:
            return [places]
        if isinstance(self.groups, int):
            return [list(part) for part in split_list(places, min(self.groups, count))]
        assert variables is not None, "groups of variables need the variables of the gradients"
        place = {ref_of(variable): index for index, variable in enumerate(variables)}
        named = [[place[ref] for ref in vars_to_refs(list(group)) if ref in place] for group in self.groups]
        grouped = {index for group in named for index in group}
        rest = [index for index in places if index not in grouped]
        return [group for group in [*named, rest] if group]


@dataclass(frozen=True)
class _Group:
    """Name of a group of gradients (None: that of the operation), and the contents that ranks compare."""

    name: str | None
    contents: str


def _described(gradient: Any, variable: Any) -> GradientOf:
    kind = "None" if gradient is None else "sparse" if isinstance(gradient, tf.IndexedSlices) else "dense"
    if hasattr(variable, "path"):  # a variable of Keras 3
        return GradientOf(name_of_keras_variable(variable), str(variable.shape), kind)
    if isinstance(variable, tf.Variable):
        return GradientOf(str(variable.name), str(variable.shape), kind)
    return GradientOf("a tensor", kind=kind)


def _without_number(scope: str) -> str:
    """Return a name scope that a graph does not number.

    Ranks may reduce the gradients of two models in different order. The names of variables distinguish these, but a
    number would not match.
    """
    if tf.executing_eagerly():
        return scope
    outer = tf.compat.v1.get_default_graph().get_name_scope()
    return f"{outer}/{scope}/" if outer else f"{scope}/"


def _made_to_run(unread: list[Any], gradients: list[Any]) -> list[Any]:
    """Make a session that runs any of the gradients also run `unread`, as other ranks do, and return the gradients."""
    if not unread or tf.executing_eagerly():
        return gradients
    with tf.control_dependencies(unread):
        return [
            None if gradient is None else tf.nest.map_structure(tf.identity, gradient, expand_composites=True)
            for gradient in gradients
        ]


# Process sets of each graph, in order of first use.
_sets: weakref.WeakKeyDictionary[Any, list[ProcessSet]] = weakref.WeakKeyDictionary()


def _suffix_of(process_set: ProcessSet) -> str:
    """Return the suffix for names of groups of this process set in a graph.

    A graph numbers nodes of equal names, and a rank has no nodes for process sets that it is not in. So nodes of
    different sets need different names. The suffix counts the sets of this graph, because ranks that have traced it in
    different worlds may have different ids for a set.
    """
    if tf.executing_eagerly() or process_set is global_process_set:
        return ""
    sets = _sets.setdefault(tf.compat.v1.get_default_graph(), [])
    if process_set not in sets:
        sets.append(process_set)
    return f"_of_set_{sets.index(process_set) + 1}"


def _node_name(sources: Sequence[GradientOf], members: Sequence[int], suffix: str) -> str | None:
    """Return the name of a group in a graph, made from its variables: ranks may have gradients for different ones."""
    if tf.executing_eagerly():
        return None
    ends = [sources[members[0]].variable, sources[members[-1]].variable]
    return "_".join(["HorovodGroupedAllreduce", *(normalize_name(end) for end in ends)]) + suffix


def checked_groups(groups: Any, num_groups: int = 0) -> Any:
    """Return the `groups` of a call as None, a positive number or lists of variables; raise ValueError otherwise."""
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
    """Return True if this rank has no other rank to reduce with.

    What an elastic job traces must also work with more workers, so the number of ranks does not count there.
    """
    if process_set.included() is False:
        return True
    elastic = default_context.settings.flag("HOROVOD_ELASTIC") and not tf.executing_eagerly()
    return process_set.size() == 1 and not elastic


def scaled_local(gradient: Any, process_set: ProcessSet) -> Any:
    """Return a gradient that stays on its rank, divided by the number of ranks like those that are averaged."""
    if gradient is None or acts_alone(process_set):
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        values = divided_by_size(gradient.values, process_set)
        return tf.IndexedSlices(values, gradient.indices, dense_shape=gradient.dense_shape)
    return divided_by_size(gradient, process_set)


class LocalVariables:
    """Set of the variables whose gradients stay on their rank; reduces the gradients of all others."""

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
        """Return the gradients in the given order: reduced for global variables, scaled for local ones."""
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
