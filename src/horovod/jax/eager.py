# SPDX-License-Identifier: Apache-2.0
"""Collectives on trees of concrete arrays; those on the CPU are passed to the engine by address, without XLA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax

from horovod.common.calls import ALLTOALL, Call
from horovod.common.context import default_context
from horovod.common.handles import Pending
from horovod.common.ops import Collectives
from horovod.jax import on_gpu
from horovod.jax.adapter import JaxAdapter, JaxArray, as_jax, concrete, hold
from horovod.jax.primitive import define_eager

collectives: Collectives[Any] = Collectives(default_context, JaxAdapter())
finish = default_context.handles.finish


def submit(call: Call, arrays: Sequence[JaxArray]) -> Pending:
    """Start a collective on one array or a group without waiting; its result is a list of JAX arrays."""
    leaves = [concrete(array, copy=True) for array in arrays]
    return _submit(call, leaves, on_gpu.gpu_of(leaves), will_wait=False)


def _submit(call: Call, leaves: Sequence[Any], gpu: Any, will_wait: bool) -> Pending:
    if call.kind == ALLTOALL:
        if len(leaves) != 1:
            raise ValueError(f"alltoall takes one array, not a tree of {len(leaves)}: call it for each of them")
        return then(start(call, leaves, gpu, will_wait), lambda output: as_jax(output[:1], gpu))
    if len(leaves) != 1:
        call = replace(call, grouped=True)
    pending = start(call, leaves, gpu, will_wait)
    return then(pending, lambda output: as_jax(output if isinstance(output, tuple) else (output,), gpu))


def start(call: Call, leaves: Sequence[Any], gpu: Any, will_wait: bool) -> Pending:
    """Begin a collective on the arrays' own memory, or on a copy for a GPU, and keep it alive until the engine is done.

    Callers that wait need this, too: another thread may donate an array meanwhile, and Ctrl-C ends only the wait.
    """
    if gpu is not None:
        return collectives.start(call, jax.device_get(leaves), will_wait)
    held = [hold(leaf) for leaf in leaves]
    pending = collectives.start(call, leaves, will_wait)
    pending.held = held
    return pending


def run(call: Call, arrays: Sequence[JaxArray]) -> Sequence[JaxArray]:
    if not arrays:
        return []
    leaves = [concrete(array) for array in arrays]
    gpu = on_gpu.gpu_of(leaves)
    if gpu is not None and on_gpu.runs_as_program(call):
        return on_gpu.run(call, leaves)
    results: list[JaxArray] = finish(_submit(call, leaves, gpu, will_wait=True))
    if call.only_root and default_context.topology.rank != call.root:
        return [jax.numpy.zeros_like(result) for result in results]
    return results


def then(pending: Pending, transform: Callable[[Any], Any]) -> Pending:
    """Apply `transform` to the result of an operation when it is done."""
    output, collect = pending.output, pending.collect
    pending.collect = lambda it: transform(output if collect is None else collect(it))
    return pending


define_eager(run)
