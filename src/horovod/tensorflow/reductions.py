# SPDX-License-Identifier: Apache-2.0
"""Public reductions: allreduce and reducescatter with compression, on dense tensors and on IndexedSlices.

Slices are gathered instead of summed: every rank gets the slices of all ranks. Duplicate indices stay separate, as in
TensorFlow's own sums of slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.rules import OP_NAMES, resolve_op
from horovod.tensorflow.compressing import bare_method, no_method, reduce_without_memory
from horovod.tensorflow.compression import Compression, Compressor
from horovod.tensorflow.mpi_ops import (
    Average,
    Sum,
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
    grouped_allgather,
    size_op,
)
from horovod.tensorflow.util import on_device


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor over all ranks and return the result on every rank.

    Gradients flow through this operation.

    Args:
        tensor: A tensor. It does not change. tf.IndexedSlices are gathered from all ranks instead of reduced, for which
            op must be Average or Sum.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        device_dense: Device for operations on dense tensors. By default TensorFlow chooses.
        device_sparse: Device for operations on tf.IndexedSlices. By default TensorFlow chooses.
        compression: hvd.Compression.none, fp16 or bf16 (the type in which floating-point values are sent),
            hvd.Compression.int8() (what leaves a host travels as 8-bit numbers; op must be Average or Sum), or your own
            subclass of hvd.Compressor.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        name: Name under which the ranks match this operation. By default it is made from the tensor's name in a graph,
            and from the kind of operation elsewhere.
        process_set: The ranks that take part. By default all ranks of the job.
        ignore_name_scope: Leave the name scopes of the graph out of the name.

    Returns:
        A new tensor with the shape of the input.

    Raises:
        tf.errors.InvalidArgumentError: An argument is not valid, another operation with this name is pending, or this
            rank is not a member of the process set.
        tf.errors.FailedPreconditionError: The ranks passed tensors or arguments that do not fit together, or the engine
            is not running.
        tf.errors.UnknownError: A rank failed or left the job.
        NotImplementedError: `op` or a factor is not supported for tf.IndexedSlices, or hvd.Adasum is used in a process
            set.

    Example:
        >>> tensor = tf.zeros(2) + hvd.rank()
        >>> hvd.allreduce(tensor, op=hvd.Sum).numpy().tolist()  # on 2 ranks: [1.0, 1.0]
    """
    op = resolve_op(op, average)
    if not isinstance(tensor, tf.IndexedSlices) and bare_method(compression, "allreduce", op):
        with on_device(device_dense):
            scaled = _Scaled(prescale_factor, postscale_factor)
            return scaled.reduce([tensor], compression, name=name, op=op, process_set=process_set)[0]
    if isinstance(tensor, tf.IndexedSlices):
        _check_slices(op, prescale_factor, postscale_factor)
        with on_device(device_sparse):
            return _gather_slices([tensor], compression, op, name, process_set, ignore_name_scope)[0]
    with on_device(device_dense):
        sent, context = compression.compress(tf.convert_to_tensor(tensor))
        result = _allreduce(
            sent,
            name=name,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
        )
        return compression.decompress(result, context)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> Any:
    """Reduce each tensor of a list over all ranks, as one unit.

    No operation of the group starts before every rank has submitted the whole group. Gradients flow through this
    operation.

    Args:
        tensors: List of tensors. They do not change. tf.IndexedSlices among them are gathered, as another unit.
        average: Deprecated; use `op`. True means hvd.Average and False means hvd.Sum.
        device_dense: Device for operations on dense tensors. By default TensorFlow chooses.
        device_sparse: Device for operations on tf.IndexedSlices. By default TensorFlow chooses.
        compression: hvd.Compression.none, fp16 or bf16 (the type in which floating-point values are sent),
            hvd.Compression.int8() (what leaves a host travels as 8-bit numbers; op must be Average or Sum), or your own
            subclass of hvd.Compressor.
        op: hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.
        process_set: The ranks that take part. By default all ranks of the job.
        ignore_name_scope: Leave the name scopes of the graph out of the name.
        name: Name under which the ranks match this operation. By default it is made from the tensor's name in a graph,
            and from the kind of operation elsewhere.

    Returns:
        The reduced tensors, in the order of the list.

    Raises:
        tf.errors.InvalidArgumentError: An argument is not valid, another operation with this name is pending, or this
            rank is not a member of the process set.
        tf.errors.FailedPreconditionError: The ranks passed tensors or arguments that do not fit together, or the engine
            is not running.
        tf.errors.UnknownError: A rank failed or left the job.
        NotImplementedError: `op` or a factor is not supported for tf.IndexedSlices, or hvd.Adasum is used in a process
            set.

    Example:
        >>> first, second = hvd.grouped_allreduce([tf.zeros(2) + hvd.rank(), tf.zeros(2)])
        >>> first.numpy().tolist()  # on 2 ranks: [0.5, 0.5]
    """
    op = resolve_op(op, average)
    if not len(tensors):
        return tensors
    results: list[Any] = [None] * len(tensors)
    sparse = [index for index, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    dense = [index for index in range(len(tensors)) if index not in set(sparse)]
    if sparse:
        _check_slices(op, prescale_factor, postscale_factor)
        slices = [tensors[index] for index in sparse]
        stem = f"{name}.sparse" if name else None
        with on_device(device_sparse):
            gathered = _gather_slices(slices, compression, op, stem, process_set, ignore_name_scope)
        for index, result in zip(sparse, gathered, strict=True):
            results[index] = result
    if dense:
        with on_device(device_dense):
            reduced = _reduce_dense_group(
                [tensors[index] for index in dense],
                compression,
                name=name,
                op=op,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
                ignore_name_scope=ignore_name_scope,
                process_set=process_set,
            )
        for index, result in zip(dense, reduced, strict=True):
            results[index] = result
    return results


def _reduce_dense_group(tensors: Sequence[Any], compression: Any, **options: Any) -> list[Any]:
    if not bare_method(compression, "grouped_allreduce", options["op"]):
        return reduce_dense(tensors, compression, **options)
    scaled = _Scaled(options["prescale_factor"], options["postscale_factor"])
    kept = {name: options[name] for name in ("name", "op", "process_set")}
    return scaled.reduce(tensors, compression, **kept)


class _Scaled:
    """Compressed reduction with the two factors of an allreduce, which compression methods do not apply."""

    def __init__(self, before: float, after: float) -> None:
        self._before, self._after = before, after

    def reduce(self, tensors: Sequence[Any], method: Any, **options: Any) -> list[Any]:
        """Return the reduced tensors."""
        sent = [_times(tf.convert_to_tensor(tensor), self._before) for tensor in tensors]
        return [_times(result, self._after) for result in reduce_without_memory(method, sent, **options)]


def _times(tensor: Any, factor: float) -> Any:
    return tensor if factor == 1.0 else tensor * tf.cast(factor, tensor.dtype)


def reduce_dense(tensors: Sequence[Any], compression: type[Compressor], **options: Any) -> list[Any]:
    """Reduce dense tensors as one unit, compressed; `options` are those of _grouped_allreduce."""
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    reduced = _grouped_allreduce([sent for sent, _ in pairs], **options)
    return [compression.decompress(result, context) for result, (_, context) in zip(reduced, pairs, strict=True)]


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce a tensor over all ranks and return this rank's share of the rows.

    If the rows do not divide evenly, each of the first ranks gets one more. Gradients flow through this operation.

    Args:
        tensor: The tensor that this rank contributes. It does not change.
        device_dense: Device for operations on dense tensors. By default TensorFlow chooses.
        compression: hvd.Compression.none, hvd.Compression.fp16 or hvd.Compression.bf16 (the type in which
            floating-point values are reduced), or your own subclass of hvd.Compressor.
        op: hvd.Average (the default) or hvd.Sum.
        name: Name under which the ranks match this operation. By default it is made from the tensor's name in a graph,
            and from the kind of operation elsewhere.
        process_set: The ranks that take part. By default all ranks of the job.
        ignore_name_scope: Leave the name scopes of the graph out of the name.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.

    Returns:
        A new tensor with this rank's rows of the result.

    Raises:
        tf.errors.InvalidArgumentError: An argument is not valid, another operation with this name is pending, or this
            rank is not a member of the process set.
        tf.errors.FailedPreconditionError: The ranks passed tensors or arguments that do not fit together, or the engine
            is not running.
        tf.errors.UnknownError: A rank failed or left the job.
        tf.errors.AbortedError: `op` is neither Average nor Sum.
        NotImplementedError: A tensor is tf.IndexedSlices.

    Example:
        >>> tensor = tf.constant([[1.0], [2.0]])
        >>> hvd.reducescatter(tensor, op=hvd.Sum).numpy().tolist()  # on rank 0 of 2: [[2.0]]
    """
    _refuse_slices("reducescatter", [tensor])
    no_method(compression, "reducescatter")
    with on_device(device_dense):
        sent, context = compression.compress(tf.convert_to_tensor(tensor))
        result = _reducescatter(
            sent,
            name=name,
            op=op,
            ignore_name_scope=ignore_name_scope,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        return compression.decompress(result, context)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce each tensor of a list over all ranks, as one unit, and return this rank's shares of the rows.

    No operation of the group starts before every rank has submitted the whole group. Gradients flow through this
    operation.

    Args:
        tensors: List of tensors that this rank contributes. They do not change.
        device_dense: Device for operations on dense tensors. By default TensorFlow chooses.
        compression: hvd.Compression.none, hvd.Compression.fp16 or hvd.Compression.bf16 (the type in which
            floating-point values are reduced), or your own subclass of hvd.Compressor.
        op: hvd.Average (the default) or hvd.Sum.
        process_set: The ranks that take part. By default all ranks of the job.
        prescale_factor: Factor by which each rank's values are multiplied before they are reduced.
        postscale_factor: Factor by which the reduced values are multiplied.

    Returns:
        This rank's rows of each result, in the order of the list.

    Raises:
        tf.errors.InvalidArgumentError: An argument is not valid, another operation with this name is pending, or this
            rank is not a member of the process set.
        tf.errors.FailedPreconditionError: The ranks passed tensors or arguments that do not fit together, or the engine
            is not running.
        tf.errors.UnknownError: A rank failed or left the job.
        tf.errors.AbortedError: `op` is neither Average nor Sum.
        NotImplementedError: A tensor is tf.IndexedSlices.

    Example:
        >>> (first,) = hvd.grouped_reducescatter([tf.constant([[1.0], [2.0]])], op=hvd.Sum)
        >>> first.numpy().tolist()  # on rank 0 of 2: [[2.0]]
    """
    _refuse_slices("grouped_reducescatter", tensors)
    no_method(compression, "grouped_reducescatter")
    if not len(tensors):
        return tensors
    with on_device(device_dense):
        pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
        results = _grouped_reducescatter(
            [sent for sent, _ in pairs],
            op=op,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        return [compression.decompress(result, context) for result, (_, context) in zip(results, pairs, strict=True)]


def _check_slices(op: int, prescale_factor: float, postscale_factor: float) -> None:
    if op not in (Sum, Average):
        name = OP_NAMES[op] if op in range(len(OP_NAMES)) else repr(op)
        raise NotImplementedError(
            f"IndexedSlices are gathered, which supports op=hvd.Sum and op=hvd.Average but not {name}. "
            "Convert them with tf.convert_to_tensor, or pass sparse_as_dense=True"
        )
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise NotImplementedError(
            "prescale_factor and postscale_factor are not supported for IndexedSlices: scale their values instead"
        )


def _refuse_slices(operation: str, tensors: Sequence[Any]) -> None:
    if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
        raise NotImplementedError(f"{operation} takes dense tensors: convert IndexedSlices with tf.convert_to_tensor")


def _gather_slices(
    slices: Sequence[Any],
    compression: type[Compressor],
    op: int,
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool,
) -> list[Any]:
    no_method(compression, "The gather of sparse tensors (tf.IndexedSlices)")
    pairs = [compression.compress(each.values) for each in slices]
    parts = [part for (values, _), each in zip(pairs, slices, strict=True) for part in (values, each.indices)]
    gathered = grouped_allgather(parts, name=name, ignore_name_scope=ignore_name_scope, process_set=process_set)
    results = []
    for number, (each, (_, context)) in enumerate(zip(slices, pairs, strict=True)):
        values = compression.decompress(gathered[2 * number], context)
        if op == Average:
            values = divided_by_size(values, process_set)
        results.append(tf.IndexedSlices(values, gathered[2 * number + 1], dense_shape=each.dense_shape))
    return results


def divided_by_size(tensor: Any, process_set: ProcessSet) -> Any:
    """Return the tensor divided by the number of ranks; in a graph, by the number when the graph runs.

    This is a true division: integers become floating-point numbers, as with TensorFlow's `/`.
    """
    if tf.executing_eagerly():
        count = tf.constant(process_set.size(), tensor.dtype)
    else:
        count = tf.cast(size_op(process_set.process_set_id or 0), tensor.dtype)
    return tensor / count
