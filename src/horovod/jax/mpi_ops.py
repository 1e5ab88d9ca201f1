# SPDX-License-Identifier: Apache-2.0
"""Operations of the JAX API on trees of arrays, with the names, signatures and defaults of the other APIs.

Every function accepts an array or a tree, and submits a tree as one unit. On concrete arrays the functions run at once;
inside jit, grad, scan and vmap they become part of the program. JAX arrays are immutable, so there are no functions
that work in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from horovod.common import door
from horovod.common.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, Call
from horovod.common.compression_methods import CompressionMethod
from horovod.common.context import default_context
from horovod.common.door import *  # noqa: F403 - they are the door's own names too
from horovod.common.door import _basics as _basics
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.rules import Average, resolve_op
from horovod.common.wire import wire_of
from horovod.jax import eager, on_gpu
from horovod.jax.adapter import JaxArray, Tree, as_jax, concrete, is_float32, is_traced
from horovod.jax.compressing.bare import compressed_allreduce
from horovod.jax.compressing.reducer import is_method
from horovod.jax.compression import Compression, Compressor
from horovod.jax.gradients import collective

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]
__all__ += door.__all__

_add = default_context.handles.add


def poll(handle: int) -> bool:
    """Whether an asynchronous operation is done, so that synchronize would not block."""
    return default_context.handles.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous operation and return its result; None if it was returned before."""
    return default_context.handles.synchronize(handle)


def run_call(call: Call, tree: Tree, compression: type[Compressor] | CompressionMethod = Compression.none) -> Tree:
    """Run a call on all leaves of a tree, either eagerly or as a part of the program that is being traced."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    if is_method(compression):
        arrays = [leaf if is_traced([leaf]) else concrete(leaf) for leaf in leaves]
        return structure.unflatten(compressed_allreduce(call, arrays, compression))
    compressor: Any = compression
    wire = wire_of(compressor)
    if wire and call.kind == ALLREDUCE and not is_traced(leaves):
        leaves = [concrete(leaf) for leaf in leaves]
        if on_gpu.gpu_of(leaves) is None:  # the engine converts arrays on the CPU; a GPU converts its own
            call = replace(call, wire=wire)
    pairs = [(leaf, None) if call.wire and is_float32(leaf) else compressor.compress(leaf) for leaf in leaves]
    arrays = [array for array, _ in pairs]
    results = collective(call, tuple(arrays)) if is_traced(arrays) else eager.run(call, arrays)
    restored = [compressor.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs, strict=True)]
    return structure.unflatten(restored)


def _start(call: Call, tree: Tree) -> int:
    leaves, structure = jax.tree_util.tree_flatten(tree)
    if is_traced(leaves):
        raise ValueError(
            "Asynchronous operations need concrete arrays; inside jit call the function without _async: "
            "XLA runs it beside whatever does not depend on it"
        )
    return _add(eager.then(eager.submit(call, leaves), structure.unflatten))


# Allreduce


def allreduce(
    tensor: Tree,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] | CompressionMethod = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tree:
    """Reduce an array or a tree over all ranks of the set (op: Average by default)."""
    op = resolve_op(op, average)
    return run_call(Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor), tensor, compression)


def allreduce_async(
    tensor: Tree,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an allreduce; the handle is for poll and synchronize."""
    op = resolve_op(op, average)
    return _start(Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor), tensor)


def grouped_allreduce(
    tensors: Sequence[Tree],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] | CompressionMethod = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tree]:
    """Allreduce a list as one unit, as allreduce does with any tree."""
    op = resolve_op(op, average)
    call = Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor)
    return list(run_call(call, list(tensors), compression))


def grouped_allreduce_async(
    tensors: Sequence[Tree],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start an allreduce of a list; one handle for all of it."""
    op = resolve_op(op, average)
    return _start(Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor), list(tensors))


# Allgather


def allgather(tensor: Tree, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tree:
    """Arrays of all ranks, one after the other along the first dimension, in which they may differ outside jit."""
    return run_call(Call(ALLGATHER, process_set, name), tensor)


def allgather_async(tensor: Tree, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start an allgather."""
    return _start(Call(ALLGATHER, process_set, name), tensor)


def grouped_allgather(
    tensors: Sequence[Tree], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tree]:
    """Allgather each array of a list, as one unit."""
    return list(run_call(Call(ALLGATHER, process_set, name), list(tensors)))


def grouped_allgather_async(
    tensors: Sequence[Tree], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start an allgather of each array of a list; one handle for all of them."""
    return _start(Call(ALLGATHER, process_set, name), list(tensors))


# Broadcast


def broadcast(
    tensor: Tree, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tree:
    """The array or tree of the (global) rank `root_rank`."""
    return run_call(Call(BROADCAST, process_set, name, root=root_rank), tensor)


def broadcast_async(
    tensor: Tree, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start a broadcast."""
    return _start(Call(BROADCAST, process_set, name, root=root_rank), tensor)


# Alltoall


def alltoall(
    tensor: JaxArray, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Send rows to every rank: equal shares, or `splits[i]` rows to member i (outside jit); then (output, received)."""
    if splits is None:
        return run_call(Call(ALLTOALL, process_set, name), tensor)
    return synchronize(alltoall_async(tensor, splits, name, process_set))


def alltoall_async(
    tensor: JaxArray, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start an alltoall; its result is always (output, received splits)."""
    if is_traced([tensor]) or is_traced(jax.tree_util.tree_leaves(splits)):
        raise ValueError(
            "alltoall with splits needs concrete arrays: inside jit the shape of its result would depend on the "
            "other ranks' splits. Call it outside jit, or pad to equal shares and leave splits out"
        )
    call = Call(ALLTOALL, process_set, name, splits=splits)
    leaves = [concrete(tensor, copy=True)]
    gpu = on_gpu.gpu_of(leaves)
    pending = eager.start(call, leaves, gpu, will_wait=False)
    return _add(eager.then(pending, lambda result: tuple(as_jax(result, gpu))))


# Reducescatter


def reducescatter(
    tensor: Tree,
    name: str | None = None,
    compression: type[Compressor] | CompressionMethod = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tree:
    """Reduce over all ranks; each gets its share of the rows, the first ranks one more if uneven."""
    return run_call(Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor), tensor, compression)


def reducescatter_async(
    tensor: Tree,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reducescatter."""
    return _start(Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor), tensor)


def grouped_reducescatter(
    tensors: Sequence[Tree],
    name: str | None = None,
    compression: type[Compressor] | CompressionMethod = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tree]:
    """Reducescatter each array of a list, as one unit."""
    call = Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor)
    return list(run_call(call, list(tensors), compression))


def grouped_reducescatter_async(
    tensors: Sequence[Tree],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start a reducescatter of each array of a list; one handle for all of them."""
    return _start(Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor), list(tensors))


# Barrier and join


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the set is here."""
    eager.collectives.barrier(process_set)


def join(device: int = -1) -> int:
    """No more data here: contribute zeros to allreduces until all ranks have joined; the rank that joined last."""
    return eager.collectives.join()
