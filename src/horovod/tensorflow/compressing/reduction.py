# SPDX-License-Identifier: Apache-2.0
"""Reduction of gradients by a compression method: selects gradients to compress, reduces them and updates the memory.

A reduction begins with one grouped allreduce of the uncompressed gradients, in which ranks also compare which gradients
they will compress.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from horovod.common.compression_methods import CompressionMethod, Int8, PowerSGD
from horovod.common.group_contents import with_compression
from horovod.common.process_sets import ProcessSet
from horovod.common.rules import Average
from horovod.tensorflow import compiled, mpi_ops
from horovod.tensorflow.compressing import int8, low_rank
from horovod.tensorflow.compressing.exchange import Residual, Wire, in_two_stages
from horovod.tensorflow.compressing.memory import Memory
from horovod.tensorflow.compressing.plans import is_on_one_host, may_change, plan_for

Tensor: TypeAlias = Any  # tf.Tensor

# This function returns the memory of the gradients at the given indices.
MemoryOf: TypeAlias = Callable[[Sequence[int]], "Memory | None"]


@dataclass(frozen=True)
class Options:
    """Options of a reduction, apart from the method."""

    name: str | None
    op: int
    process_set: ProcessSet
    contents: str = ""


def reduce_by(
    method: CompressionMethod, tensors: Sequence[Tensor], names: Sequence[str], options: Options, memory_of: MemoryOf
) -> list[Tensor]:
    """Return the reduced tensors.

    Args:
        names: Names of the variables, for `exclude`.
        memory_of: Returns the memory of the compressed gradients, or None if the method needs none.
    """
    if compiled.is_compiling():
        raise NotImplementedError(
            f"compression={method.describe()} cannot be part of a function that XLA compiles: pass jit_compile=False, "
            "to model.compile() if Keras makes the function"
        )
    chosen = [place for place, tensor in enumerate(tensors) if _is_compressed(method, tensor, names[place])]
    contents = with_compression(options.contents, method.describe(), chosen)
    memory = memory_of(chosen) if chosen else None
    if not chosen or (method.scope == "host" and is_on_one_host(options.process_set)):
        return _grouped(list(tensors), options, options.name, contents)
    return _Step(method, tensors, chosen, memory, options).run(contents)


def initial_memory(method: CompressionMethod, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the initial values of a memory for gradients of these shapes."""
    nothing = np.zeros(0, np.float32)
    if not isinstance(method, PowerSGD):
        return {"residual": nothing, "residual_of_sum": nothing}
    matrices = [it for it in (low_rank.matrix_of(shape, method) for shape in shapes) if it is not None]
    values: dict[str, Any] = {"q": low_rank.first_q(matrices, method.seed), "steps": np.int64(0)}
    return values | ({"residual": nothing} if method.error_feedback else {})


class _Step:
    """One reduction that compresses at least one gradient."""

    def __init__(
        self,
        method: CompressionMethod,
        tensors: Sequence[Tensor],
        chosen: Sequence[int],
        memory: Memory | None,
        options: Options,
    ) -> None:
        self._method = method
        self._tensors = tensors
        self._chosen = chosen
        self._memory = memory
        self._options = options
        self._wire = Wire(options.name, options.process_set)

    def run(self, contents: str) -> list[Tensor]:
        """Return the reduced tensors in the order of the inputs."""
        rest = [place for place in range(len(self._tensors)) if place not in set(self._chosen)]
        start = self._start_after()
        sent = [self._tensors[place] for place in rest]
        sent += [] if start is None else [tf.cast(self._steps() >= start, tf.float32)[None]]
        reduced = _grouped(sent or [tf.zeros([0])], self._options, self._options.name, contents)
        # If ranks differ, the reduction above fails, and the exchange below does not start.
        with tf.control_dependencies(_in_graph(reduced[:1])):
            values = [tf.identity(self._tensors[place]) for place in self._chosen]
        count = sum(value.shape.num_elements() for value in values)
        plan = plan_for(self._options.process_set, self._method.scope, count, self._message_bytes)
        conditions = [plan.hosts > 1] if may_change() else []
        # A new rank of an elastic job has made no dense step yet. All ranks compress if any rank has made all of its
        # dense steps.
        conditions += [] if start is None else [reduced[-1][0] > 0]
        rest_is_finite = _are_finite(reduced[: len(rest)])
        if conditions:
            found = tf.cond(
                tf.reduce_all(conditions),
                lambda: self._compressed(values, plan, rest_is_finite),
                lambda: _grouped(values, self._options, self._wire.stage("dense"), ""),
            )
        else:
            found = self._compressed(values, plan, rest_is_finite)
        if start is not None:
            found = self._counted(found, start, conditions[-1])
        result = list(self._tensors)
        for place, tensor in zip([*rest, *self._chosen], [*reduced[: len(rest)], *found], strict=True):
            result[place] = tensor
        return result

    def _message_bytes(self, count: int) -> int:
        return int8.message_bytes(count, self._method.block) if isinstance(self._method, Int8) else count

    def _start_after(self) -> int | None:
        """Return the number of dense steps; None if the first step is compressed."""
        return (self._method.start_after or None) if isinstance(self._method, PowerSGD) else None

    def _steps(self) -> Tensor:
        assert self._memory is not None
        return self._memory.steps.read_value()

    def _counted(self, found: Sequence[Tensor], start: int, has_started: Tensor) -> list[Tensor]:
        assert self._memory is not None
        with tf.control_dependencies(_in_graph(found)):
            steps = self._steps()
            counted = self._memory.steps.assign(tf.where(has_started, tf.maximum(steps, start), steps) + 1)
        with tf.control_dependencies(_in_graph([counted])):
            return [tf.identity(tensor) for tensor in found]

    def _compressed(self, values: Sequence[Tensor], plan: Any, rest_is_finite: Tensor) -> list[Tensor]:
        flat = tf.concat([tf.reshape(tf.cast(value, tf.float32), [-1]) for value in values], 0)
        if isinstance(self._method, PowerSGD):
            mean, kept = self._by_factors(flat, values)
            result = mean if self._options.op == Average else mean * tf.cast(plan.size, tf.float32)
        else:
            total, kept = self._by_int8(flat, plan)
            result = total / tf.cast(plan.size, tf.float32) if self._options.op == Average else total
        if self._memory is not None:
            # Every rank has the whole result, so either all ranks update their memory or none does.
            updates = self._memory.keep(rest_is_finite & _are_finite([result]), **kept)
            with tf.control_dependencies(_in_graph(updates)):
                result = tf.identity(result)
        parts = tf.split(result, [value.shape.num_elements() for value in values])
        return [tf.cast(tf.reshape(part, one.shape), one.dtype) for part, one in zip(parts, values, strict=True)]

    def _by_int8(self, flat: Tensor, plan: Any) -> tuple[Tensor, dict[str, Tensor]]:
        assert isinstance(self._method, Int8)
        is_spread = self._method.scope == "all" or (not may_change() and int(tf.get_static_value(plan.largest)) == 1)
        residual: Residual | None = None if self._memory is None else self._memory.still_valid
        return in_two_stages(flat, plan, self._method.block, self._wire, residual, is_spread)

    def _by_factors(self, flat: Tensor, values: Sequence[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        assert isinstance(self._method, PowerSGD)
        assert self._memory is not None
        found = [low_rank.matrix_of(tuple(value.shape), self._method) for value in values]
        matrices = [it for it in found if it is not None]
        count = flat.shape.num_elements()
        owner = plan_for(self._options.process_set, "all", count, self._message_bytes).owner
        if self._method.error_feedback:
            flat += self._memory.still_valid("residual", owner, count)
        mean, left, q = low_rank.by_factors(flat, matrices, self._memory.q.read_value(), self._wire)
        kept = {"q": q, "owner": owner}
        return mean, kept | ({"residual": left} if self._method.error_feedback else {})


def _is_compressed(method: CompressionMethod, tensor: Tensor, name: str) -> bool:
    if not tensor.dtype.is_floating or not tensor.shape.is_fully_defined():
        return False
    if not tensor.shape.num_elements() or not method.compresses(name, tensor.shape.num_elements() * tensor.dtype.size):
        return False
    return not isinstance(method, PowerSGD) or low_rank.matrix_of(tuple(tensor.shape), method) is not None


def _grouped(tensors: Sequence[Tensor], options: Options, name: str | None, contents: str) -> list[Tensor]:
    return list(
        mpi_ops._grouped_allreduce(
            tensors, name=name, op=options.op, process_set=options.process_set, contents=contents
        )
    )


def _are_finite(tensors: Sequence[Tensor]) -> Tensor:
    found = [tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors if tensor.dtype.is_floating]
    return tf.reduce_all(found) if found else tf.constant(True)


def _in_graph(values: Sequence[Any]) -> list[Any]:
    """Return the values that a graph has to wait for; in eager mode none, because they are already computed."""
    return [] if tf.executing_eagerly() else list(values)
