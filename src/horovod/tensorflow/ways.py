# SPDX-License-Identifier: Apache-2.0
"""Selection of the implementation of a collective.

It is a native TensorFlow operation if the library could be loaded, else a call through Python; in a function that XLA
compiles it is a custom call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from horovod.common import waits
from horovod.common.context import default_context
from horovod.common.process_sets import ProcessSet
from horovod.tensorflow import compiled, native, through_python
from horovod.tensorflow.calls import Call, Tensor
from horovod.tensorflow.collective_gradients import Gradients
from horovod.tensorflow.errors import UnknownProcessSetError

F = TypeVar("F", bound=Callable[..., Any])

# Load the native operations. If there are none, why_not_native is the reason.
operations, why_not_native = native.load()
waits.frameworks_submit()  # TensorFlow's own threads submit operations


def _as_it_is(function: F) -> F:
    """Exclude a function from AutoGraph, which would only waste time on converting it."""
    return tf.autograph.experimental.do_not_convert(function)  # type: ignore[no-any-return]


@_as_it_is
def run(call: Call, tensors: Sequence[Tensor], splits: Tensor | None = None) -> list[Tensor]:
    """Run a collective. Return the results in the order of the tensors.

    For an alltoall, the results are its output and the received splits.
    """
    if call.process_set.membership is None:
        _check_registered(call.process_set, call.type_name)
    if compiled.is_compiling():
        return _with_gradient(compiled.run, call, tensors, splits)
    if operations is not None:
        return native.run(operations, call, tensors, splits)
    return _with_gradient(through_python.run, call, tensors, splits)


def _check_registered(process_set: ProcessSet, operation: str) -> None:
    """Raise an error for a process set that is not registered.

    Without a world, allow it: it may be registered later.
    """
    if default_context.is_initialized:
        try:
            default_context.registered_sets.check_registered(process_set)
        except ValueError as error:
            raise UnknownProcessSetError(None, None, f"{operation}: {error}") from None


def _with_gradient(
    run_call: Callable[..., list[Tensor]], call: Call, tensors: Sequence[Tensor], splits: Tensor | None
) -> list[Tensor]:
    def collective(*inputs: Tensor) -> tuple[Any, Any]:
        outputs = run_call(call, inputs[: len(tensors)], None if splits is None else inputs[-1])

        def gradient(*upstream: Tensor) -> list[Tensor | None]:
            return gradients.of(call, inputs, outputs, upstream)

        return outputs, gradient

    return list(tf.custom_gradient(collective)(*tensors, *([] if splits is None else [splits])))


@_as_it_is
def join() -> Tensor:
    if compiled.is_compiling():
        raise NotImplementedError("hvd.join() cannot be part of a function with jit_compile=True; call it outside")
    return native.join(operations) if operations is not None else through_python.join()


@_as_it_is
def topology(question: str, process_set_id: int = 0, name: str | None = None) -> Tensor:
    """Return size, rank, local_size, local_rank or process_set_included as it is when the graph runs."""
    if tf.executing_eagerly() and default_context.sets.membership_with_id(process_set_id) is None:
        named = ProcessSet([])
        named.process_set_id = process_set_id
        _check_registered(named, f"{question}_op")
    if compiled.is_compiling():
        return tf.identity(compiled.topology(question, process_set_id), name)
    if operations is not None:
        return native.topology(operations, question, process_set_id, name)
    return tf.identity(through_python.topology(question, process_set_id), name)


gradients = Gradients(run, lambda: topology("rank"), lambda set_id: topology("size", set_id), compiled.is_compiling)
if operations is not None:
    native.register_gradients(gradients.of)
