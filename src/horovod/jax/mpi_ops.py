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
    """Return True if an asynchronous operation has completed, so that synchronize() would return at once.

    Args:
        handle: What the asynchronous function returned.

    Returns:
        True if the operation has completed or failed.

    Raises:
        ValueError: The handle is unknown, or synchronize() has returned its result already.

    Example:
        >>> handle = hvd.allreduce_async(jnp.zeros(2) + hvd.rank())
        >>> while not hvd.poll(handle): time.sleep(0.001)  # or other work
    """
    return default_context.handles.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous operation and return its result.

    Args:
        handle: What the asynchronous function returned.

    Returns:
        The result of the operation. None if the result was returned before, or the handle is unknown.

    Raises:
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> handle = hvd.allreduce_async(jnp.zeros(2) + hvd.rank())
        >>> hvd.synchronize(handle).tolist()  # on 2 ranks: [0.5, 0.5]
    """
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
    """Reduce an array over all ranks and return the result on every rank.

    Inside jit the operation becomes part of the program. Within hvd.translated_errors() the compiled program raises the
    errors below, too.

    Args:
        tensor: An array, or a tree of arrays that is sent as one unit. It does not change.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        compression: hvd.Compression.none, fp16 or bf16 (the type in which floating-point values are sent),
            hvd.Compression.int8() (what leaves a host travels as 8-bit numbers; op must be Average or Sum), or your own
            subclass of hvd.Compressor.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A new array with the shape of the input.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = jnp.zeros(2) + hvd.rank()
        >>> hvd.allreduce(tensor, op=hvd.Sum).tolist()  # on 2 ranks: [1.0, 1.0]
    """
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
    """Start to reduce an array over all ranks.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensor: An array, or a tree of arrays that is sent as one unit. It does not change.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns a new array.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.allreduce_async(jnp.zeros(2) + hvd.rank(), op=hvd.Sum)
        >>> hvd.synchronize(handle).tolist()  # on 2 ranks: [1.0, 1.0]
    """
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
    """Reduce each array of a list over all ranks, as one unit.

    No operation of the group starts before every rank has submitted the whole group. Inside jit the operation becomes
    part of the program. Within hvd.translated_errors() the compiled program raises the errors below, too.

    Args:
        tensors: List of arrays or of trees of arrays. They do not change.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        compression: hvd.Compression.none, fp16 or bf16 (the type in which floating-point values are sent),
            hvd.Compression.int8() (what leaves a host travels as 8-bit numbers; op must be Average or Sum), or your own
            subclass of hvd.Compressor.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The reduced arrays, in the order of the list.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> first, second = hvd.grouped_allreduce([jnp.zeros(2) + hvd.rank(), jnp.zeros(2)])
        >>> first.tolist()  # on 2 ranks: [0.5, 0.5]
    """
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
    """Start to reduce each array of a list over all ranks, as one unit.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensors: List of arrays or of trees of arrays. They do not change.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns the reduced arrays.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.grouped_allreduce_async([jnp.zeros(2) + hvd.rank(), jnp.zeros(2)])
        >>> hvd.synchronize(handle)[0].tolist()  # on 2 ranks: [0.5, 0.5]
    """
    op = resolve_op(op, average)
    return _start(Call(ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor), list(tensors))


# Allgather


def allgather(tensor: Tree, name: str | None = None, process_set: ProcessSet = global_process_set) -> Tree:
    """Concatenate the arrays of all ranks along the first dimension.

    Inside jit the operation becomes part of the program. Within hvd.translated_errors() the compiled program raises the
    errors below, too.

    Args:
        tensor: An array, or a tree of arrays. Arrays may differ between ranks in their first dimension, but not inside
            jit.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A new array with the rows of all ranks, in the order of the ranks.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = jnp.zeros(2)[: hvd.rank() + 1]  # one row on rank 0, two on rank 1
        >>> hvd.allgather(tensor).tolist()  # on 2 ranks: [0.0, 0.0, 0.0]
    """
    return run_call(Call(ALLGATHER, process_set, name), tensor)


def allgather_async(tensor: Tree, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start to concatenate the arrays of all ranks along the first dimension.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensor: An array, or a tree of arrays that is sent as one unit. It does not change.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns a new array.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.allgather_async(jnp.zeros(2) + hvd.rank())
        >>> hvd.synchronize(handle).tolist()  # on 2 ranks: [0.0, 0.0, 1.0, 1.0]
    """
    return _start(Call(ALLGATHER, process_set, name), tensor)


def grouped_allgather(
    tensors: Sequence[Tree], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tree]:
    """Concatenate the arrays of all ranks, for each array of a list, as one unit.

    No operation of the group starts before every rank has submitted the whole group. Inside jit the operation becomes
    part of the program. Within hvd.translated_errors() the compiled program raises the errors below, too.

    Args:
        tensors: List of arrays or of trees of arrays. Arrays may differ between ranks in their first dimension, but not
            inside jit.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The concatenated arrays, in the order of the list.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> first, second = hvd.grouped_allgather([jnp.zeros(2) + hvd.rank(), jnp.zeros(2)])
        >>> first.tolist()  # on 2 ranks: [0.0, 0.0, 1.0, 1.0]
    """
    return list(run_call(Call(ALLGATHER, process_set, name), list(tensors)))


def grouped_allgather_async(
    tensors: Sequence[Tree], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to concatenate the arrays of all ranks, for each array of a list, as one unit.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensors: List of arrays or of trees of arrays. They do not change.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns the concatenated arrays.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.grouped_allgather_async([jnp.zeros(2) + hvd.rank(), jnp.zeros(2)])
        >>> hvd.synchronize(handle)[0].tolist()  # on 2 ranks: [0.0, 0.0, 1.0, 1.0]
    """
    return _start(Call(ALLGATHER, process_set, name), list(tensors))


# Broadcast


def broadcast(
    tensor: Tree, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tree:
    """Send one rank's array to all ranks.

    Inside jit the operation becomes part of the program. Within hvd.translated_errors() the compiled program raises the
    errors below, too.

    Args:
        tensor: An array, or a tree of arrays that is sent as one unit. It does not change.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A new array with the root's values.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = jnp.zeros(2) + hvd.rank()
        >>> hvd.broadcast(tensor, root_rank=1).tolist()  # on 2 ranks: [1.0, 1.0]
    """
    return run_call(Call(BROADCAST, process_set, name, root=root_rank), tensor)


def broadcast_async(
    tensor: Tree, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to send one rank's array to all ranks.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensor: An array, or a tree of arrays that is sent as one unit. It does not change.
        root_rank: The rank that sends its values, counted among all ranks of the job.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns a new array.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.broadcast_async(jnp.zeros(2) + hvd.rank(), root_rank=1)
        >>> hvd.synchronize(handle).tolist()  # on 2 ranks: [1.0, 1.0]
    """
    return _start(Call(BROADCAST, process_set, name, root=root_rank), tensor)


# Alltoall


def alltoall(
    tensor: JaxArray, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Send rows of an array to every rank, and receive rows from every rank.

    Inside jit the operation becomes part of the program. Within hvd.translated_errors() the compiled program raises the
    errors below, too.

    Args:
        tensor: The rows to send, those for the first rank first.
        splits: Number of rows for each rank, as a list or an array of integers. Rows beyond their sum are not sent. By
            default all ranks get an equal share. Inside jit it must be None.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        The received rows, in the order of the ranks. If `splits` is given, a tuple of these rows and the number of rows
        from each rank.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> tensor = jnp.array([10, 20])
        >>> hvd.alltoall(tensor).tolist()  # on rank 0 of 2: [10, 10]
    """
    if splits is None:
        return run_call(Call(ALLTOALL, process_set, name), tensor)
    return synchronize(alltoall_async(tensor, splits, name, process_set))


def alltoall_async(
    tensor: JaxArray, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to send rows of an array to every rank.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensor: The rows to send, those for the first rank first.
        splits: Number of rows for each rank, as a list or an array of integers. Rows beyond their sum are not sent. By
            default all ranks get an equal share.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        process_set: The ranks that take part. By default all ranks of the job.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns a tuple of the received rows and the number of rows
        from each rank.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.

    Example:
        >>> handle = hvd.alltoall_async(jnp.array([10, 20]))
        >>> hvd.synchronize(handle)[0].tolist()  # on rank 0 of 2: [10, 10]
    """
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
    """Reduce an array over all ranks and return this rank's share of the rows.

    If the rows do not divide evenly, each of the first ranks gets one more. Inside jit the operation becomes part of
    the program. Within hvd.translated_errors() the compiled program raises the errors below, too.

    Args:
        tensor: An array, or a tree of arrays that is sent as one unit. It does not change.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        compression: hvd.Compression.none, hvd.Compression.fp16 or hvd.Compression.bf16 (the type in which
            floating-point values are reduced), or your own subclass of hvd.Compressor.
        op: hvd.Average (the default) or hvd.Sum.
        process_set: The ranks that take part. By default all ranks of the job.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.

    Returns:
        A new array with this rank's rows of the result.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job, or `op` is neither Average nor Sum.

    Example:
        >>> tensor = jnp.array([[1.0], [2.0]])
        >>> hvd.reducescatter(tensor, op=hvd.Sum).tolist()  # on rank 0 of 2: [[2.0]]
    """
    return run_call(Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor), tensor, compression)


def reducescatter_async(
    tensor: Tree,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to reduce an array over all ranks, for this rank's share of the rows.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensor: An array, or a tree of arrays that is sent as one unit. It does not change.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default) or hvd.Sum.
        process_set: The ranks that take part. By default all ranks of the job.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns this rank's rows of the result.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodInternalError: `op` is neither Average nor Sum.

    Example:
        >>> handle = hvd.reducescatter_async(jnp.array([[1.0], [2.0]]), op=hvd.Sum)
        >>> hvd.synchronize(handle).tolist()  # on rank 0 of 2: [[2.0]]
    """
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
    """Reduce each array of a list over all ranks, as one unit, and return this rank's shares of the rows.

    No operation of the group starts before every rank has submitted the whole group. Inside jit the operation becomes
    part of the program. Within hvd.translated_errors() the compiled program raises the errors below, too.

    Args:
        tensors: List of arrays or of trees of arrays. They do not change.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        compression: hvd.Compression.none, hvd.Compression.fp16 or hvd.Compression.bf16 (the type in which
            floating-point values are reduced), or your own subclass of hvd.Compressor.
        op: hvd.Average (the default) or hvd.Sum.
        process_set: The ranks that take part. By default all ranks of the job.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.

    Returns:
        This rank's rows of each result, in the order of the list.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodMismatchError: The ranks passed arrays or arguments that do not fit together.
        HorovodInternalError: A rank failed or left the job, or `op` is neither Average nor Sum.

    Example:
        >>> (first,) = hvd.grouped_reducescatter([jnp.array([[1.0], [2.0]])], op=hvd.Sum)
        >>> first.tolist()  # on rank 0 of 2: [[2.0]]
    """
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
    """Start to reduce each array of a list over all ranks, as one unit, for this rank's shares of the rows.

    Do not change an array that an operation uses before the operation has completed.

    Args:
        tensors: List of arrays or of trees of arrays. They do not change.
        name: Name under which the ranks match this operation. Operations without a name match in the order of the calls
            in their process set.
        op: hvd.Average (the default) or hvd.Sum.
        process_set: The ranks that take part. By default all ranks of the job.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.

    Returns:
        A handle for poll() and synchronize(). synchronize() returns this rank's rows of each result.

    Raises:
        ValueError: An argument is not valid, another operation with this name is pending, or this rank is not a member
            of the process set.
        HorovodInternalError: `op` is neither Average nor Sum.

    Example:
        >>> handle = hvd.grouped_reducescatter_async([jnp.array([[1.0], [2.0]])], op=hvd.Sum)
        >>> hvd.synchronize(handle)[0].tolist()  # on rank 0 of 2: [[2.0]]
    """
    return _start(Call(REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor), list(tensors))


# Barrier and join


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the process set has called this function.

    Args:
        process_set: The ranks that take part. By default all ranks of the job.

    Raises:
        ValueError: This rank is not a member of the process set.
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> hvd.barrier()
        >>> print('all ranks are here')
    """
    eager.collectives.barrier(process_set)


def join(device: int = -1) -> int:
    """Take part in the other ranks' allreduces with zeros, until all ranks have called this function.

    Call it on a rank that has no more data. Operations other than allreduce fail until all ranks have joined.

    Args:
        device: Has no effect.

    Returns:
        The rank that joined last.

    Raises:
        HorovodInternalError: A rank failed or left the job.

    Example:
        >>> last = hvd.join()
        >>> last in range(hvd.size())  # on 2 ranks: True
    """
    return eager.collectives.join()
