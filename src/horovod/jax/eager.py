# SPDX-License-Identifier: Apache-2.0
"""Collectives on concrete arrays: by their buffers' addresses, past XLA. Trees in, trees out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from horovod.common.context import default_context
from horovod.common.handles import Pending
from horovod.common.ops import Collectives
from horovod.jax.adapter import JaxAdapter, JaxArray, as_jax, concrete
from horovod.jax.primitive import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    REDUCESCATTER,
    Spec,
    define_eager,
)

collectives: Collectives[Any] = Collectives(default_context, JaxAdapter())
finish = default_context.handles.finish


def submit(spec: Spec, arrays: Sequence[JaxArray], will_wait: bool) -> Pending:
    """Start a collective on one array or a group; its result is the list of JAX arrays."""
    leaves = [concrete(array) for array in arrays]
    pending = _START[spec.kind](spec, leaves, will_wait)
    return then(pending, lambda output: as_jax(output if isinstance(output, tuple) else (output,)))


def run(spec: Spec, arrays: Sequence[JaxArray]) -> Sequence[JaxArray]:
    if not arrays:
        return []
    results: list[JaxArray] = finish(submit(spec, arrays, will_wait=True))
    if spec.only_root and default_context.topology.rank != spec.root:
        return [jax.numpy.zeros_like(result) for result in results]
    return results


def then(pending: Pending, transform: Callable[[Any], Any]) -> Pending:
    """Change what an operation gives once it is done."""
    output, collect = pending.output, pending.collect
    pending.collect = lambda it: transform(output if collect is None else collect(it))
    return pending


def _allreduce(spec: Spec, leaves: list[JaxArray], will_wait: bool) -> Pending:
    how = (spec.name, spec.op, spec.prescale, spec.postscale, spec.process_set, will_wait, spec.wire)
    if len(leaves) == 1:
        return collectives.allreduce(leaves[0], False, *how)
    return collectives.grouped_allreduce(leaves, False, *how)


def _reducescatter(spec: Spec, leaves: list[JaxArray], will_wait: bool) -> Pending:
    how = (spec.name, spec.op, spec.prescale, spec.postscale, spec.process_set, will_wait)
    if len(leaves) == 1:
        return collectives.reducescatter(leaves[0], *how)
    return collectives.grouped_reducescatter(leaves, *how)


def _allgather(spec: Spec, leaves: list[JaxArray], will_wait: bool) -> Pending:
    if len(leaves) == 1:
        return collectives.allgather(leaves[0], spec.name, spec.process_set, will_wait)
    return collectives.grouped_allgather(leaves, spec.name, spec.process_set, will_wait)


def _broadcast(spec: Spec, leaves: list[JaxArray], will_wait: bool) -> Pending:
    if len(leaves) == 1:
        return collectives.broadcast(leaves[0], False, spec.root, spec.name, spec.process_set, will_wait)
    return collectives.grouped_broadcast(leaves, spec.root, spec.name, spec.process_set, will_wait)


def _alltoall(spec: Spec, leaves: list[JaxArray], will_wait: bool) -> Pending:
    (leaf,) = leaves
    return then(collectives.alltoall(leaf, None, spec.name, spec.process_set, will_wait), lambda output: output[0])


_START: dict[int, Callable[[Spec, list[JaxArray], bool], Pending]] = {
    ALLREDUCE: _allreduce,
    ALLGATHER: _allgather,
    BROADCAST: _broadcast,
    ALLTOALL: _alltoall,
    REDUCESCATTER: _reducescatter,
}
define_eager(run)
