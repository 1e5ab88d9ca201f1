# SPDX-License-Identifier: Apache-2.0
"""Application of a compression method by optimizers, tapes and allreduce: which memory it uses, what it rejects."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from horovod.common.compression_methods import CompressionMethod, Int8, PowerSGD
from horovod.common.process_sets import ProcessSet
from horovod.common.rules import Average
from horovod.common.supported_methods import check_exclude, method_in
from horovod.tensorflow.compressing.memory import Memories, Memory, memories_of
from horovod.tensorflow.compressing.reduction import Options, initial_memory, reduce_by
from horovod.tensorflow.util import ref_of, tf_variable

Tensor: TypeAlias = Any  # tf.Tensor

METHODS = (Int8, PowerSGD)  # methods that optimizers and tapes support


class CompressedReduction:
    """Reduction of gradients by a compression method, with the state that the next step needs.

    Attributes:
        op: The reduction: a sum or a mean.
        memories: The state, if this belongs to an optimizer; None if the state is stored with the variables.
    """

    def __init__(self, method: CompressionMethod, op: int, memories: Memories | None) -> None:
        self.method = method
        self.memories = memories
        self.op = op
        self._checked: set[Any] = set()

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def __call__(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        *,
        name: str | None,
        process_set: ProcessSet,
        contents: str = "",
    ) -> list[Tensor]:
        """Return the reduced gradients, which are dense tensors."""
        names = [name_of(variable) for variable in variables]

        def memory_of(chosen: Sequence[int]) -> Memory | None:
            return self._memory_of([variables[place] for place in chosen], process_set)

        options = Options(name, self.op, process_set, contents)
        return reduce_by(self.method, [tf.convert_to_tensor(it) for it in gradients], names, options, memory_of)

    def check(self, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Raise ValueError if a method would compress gathered slices, or if an `exclude` pattern matches nothing."""
        sparse = [
            name_of(variable)
            for variable, gradient in zip(variables, gradients, strict=True)
            if isinstance(gradient, tf.IndexedSlices) and self._would_compress(variable)
        ]
        if sparse:
            raise ValueError(
                f"compression={self.method.describe()} does not support sparse gradients (tf.IndexedSlices), which are "
                f"gathered: here those of {', '.join(sparse)}. Pass sparse_as_dense=True, or name them in exclude="
            )
        names = tuple(name_of(variable) for variable in variables)
        if names not in self._checked:
            check_exclude(self.method, names)
            self._checked.add(names)

    def _would_compress(self, variable: Any) -> bool:
        own = tf_variable(variable)
        return self.method.compresses(name_of(variable), own.shape.num_elements() * own.dtype.size)

    def _memory_of(self, variables: Sequence[Any], process_set: ProcessSet) -> Memory | None:
        if isinstance(self.method, Int8) and not self.method.error_feedback:
            return None
        memories = memories_of(variables) if self.memories is None else self.memories
        key = (self.method.describe(), self.op, process_set, tuple(ref_of(variable) for variable in variables))
        shapes = [tuple(variable.shape) for variable in variables]
        memory = memories.find(key, lambda: initial_memory(self.method, shapes))
        if self.memories is None and self.method.error_feedback and not tf.executing_eagerly():
            self._refuse_second_use(memory, variables)
        return memory

    def _refuse_second_use(self, memory: Memory, variables: Sequence[Any]) -> None:
        graph = tf.compat.v1.get_default_graph()
        if memory.last_graph is not None and memory.last_graph() is graph:
            raise ValueError(
                f"compression={self.method.describe()}: one function reduces two gradients of {name_of(variables[0])} "
                f"and {len(variables) - 1} more variables, so error feedback would add the losses of the first one to "
                "the second one. Reduce the gradients of the sum of the losses, or pass error_feedback=False"
            )
        memory.last_graph = weakref.ref(graph)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def reduce_without_memory(
    method: CompressionMethod, tensors: Sequence[Any], *, name: str | None, op: int, process_set: ProcessSet
) -> list[Tensor]:
    """Return tensors reduced without error feedback. Their own gradients are reduced without compression."""
    options = Options(name, op, process_set)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduce(*inputs: Tensor) -> tuple[Any, Any]:
        def gradient(*upstream: Tensor) -> list[Tensor]:
            return reduce_by(dense, upstream, [""] * len(upstream), options, lambda chosen: None)

        return reduce_by(method, inputs, [name or ""] * len(inputs), options, lambda chosen: None), gradient

    dense = Int8(exclude=("*",))
    return list(reduce(*(tf.convert_to_tensor(tensor) for tensor in tensors)))


def bare_method(compression: Any, function: str, op: int = Average) -> CompressionMethod | None:
    """Return the method if it works without memory; None for a Compressor. Raise an error for other methods."""
    return method_in(compression, (Int8,), function, op)


def no_method(compression: Any, function: str) -> None:
    """Raise an error if the compression is a method instead of a Compressor."""
    method_in(compression, (), function)


def name_of(variable: Any) -> str:
    """Return the name that `exclude` is compared with: Keras 3's path, else the name without the output number."""
    path = getattr(variable, "path", None)
    if isinstance(path, str):
        return path
    if not isinstance(tf_variable(variable), tf.Variable):
        raise ValueError(
            f"Compression with a memory needs variables as the sources of gradients, not {type(variable).__name__}: "
            "pass a compressor without a memory, such as hvd.Compression.fp16"
        )
    return str(variable.name).partition(":")[0]
