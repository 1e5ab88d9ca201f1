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
    """Reduce a tensor over all ranks of the set (op: Average by default); gather slices."""
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
    """Reduce a list as one unit; slices among the tensors are gathered, as another unit."""
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
    """Reduce over all ranks; each gets its share of the rows, the first ranks one more if uneven."""
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
    """Reducescatter each tensor of a list, as one unit."""
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
            f"IndexedSlices are gathered, which serves op=hvd.Sum and hvd.Average but not {name}. "
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
