# SPDX-License-Identifier: Apache-2.0
"""Operations of the TensorFlow API, with the names, signatures, defaults and errors of Horovod's contract.

All work in eager mode, in tf.function and in graphs of a v1 Session; operations on tensors have gradients. The
functions with a leading underscore have no compression and no IndexedSlices; the public functions add these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common import rules
from horovod.common.calls import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER
from horovod.common.door import *  # noqa: F403 - they are the door's own names too
from horovod.common.door import _basics as _basics
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.rules import Adasum, Average, Sum, resolve_op
from horovod.common.util import check_installed_version as check_installed_version
from horovod.common.util import get_average_backwards_compatibility_fun as get_average_backwards_compatibility_fun
from horovod.common.util import get_ext_suffix as get_ext_suffix
from horovod.common.util import gpu_available as gpu_available
from horovod.common.util import num_rank_is_power_2 as num_rank_is_power_2
from horovod.tensorflow import ways
from horovod.tensorflow.calls import Call, Tensor

handle_average_backwards_compatibility = resolve_op
check_num_rank_power_of_2 = num_rank_is_power_2
MPI_LIB = ways.operations  # the native library; None if operations go through Python


def _one(call: Call, tensor: Any) -> Tensor:
    return ways.run(call, [tf.convert_to_tensor(tensor)])[0]


def _group(call: Call, tensors: Sequence[Any]) -> Sequence[Tensor]:
    return ways.run(call, [tf.convert_to_tensor(tensor) for tensor in tensors]) if tensors else tensors


# Reductions


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce a dense tensor over all ranks of the set."""
    _check_adasum(op, process_set)
    call = Call(
        ALLREDUCE, process_set, name, op, prescale_factor, postscale_factor, ignore_name_scope=ignore_name_scope
    )
    return _one(call, tensor)


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    contents: str = "",
) -> Sequence[Tensor]:
    """Reduce dense tensors as one unit: the reduction starts when every tensor is ready on every rank.

    `contents` describes the tensors; ranks on which it differs get an error.
    """
    _check_adasum(op, process_set)
    call = Call(
        ALLREDUCE,
        process_set,
        name,
        op,
        prescale_factor,
        postscale_factor,
        grouped=True,
        contents=contents,
        ignore_name_scope=ignore_name_scope,
    )
    return _group(call, tensors)


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduce over all ranks and return this rank's share of the rows; the first ranks get one more if uneven."""
    _check_scatter(op)
    call = Call(
        REDUCESCATTER, process_set, name, op, prescale_factor, postscale_factor, ignore_name_scope=ignore_name_scope
    )
    return _one(call, tensor)


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Sequence[Tensor]:
    """Reducescatter each tensor of a list, as one unit."""
    _check_scatter(op)
    call = Call(
        REDUCESCATTER,
        process_set,
        name,
        op,
        prescale_factor,
        postscale_factor,
        grouped=True,
        ignore_name_scope=ignore_name_scope,
    )
    return _group(call, tensors)


def _check_adasum(op: int, process_set: ProcessSet) -> None:
    if op == Adasum and process_set is not global_process_set:
        raise NotImplementedError("Adasum works only on the global process set")


def _check_scatter(op: int) -> None:
    if op not in (Average, Sum):
        name = rules.OP_NAMES[op] if op in range(len(rules.OP_NAMES)) else repr(op)
        text = f"HorovodReducescatter supports the operations Average and Sum, not {name}"
        raise tf.errors.AbortedError(None, None, text)


# Movements


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Tensors of all ranks, one after the other along the first dimension, in which they may differ."""
    return _one(Call(ALLGATHER, process_set, name, ignore_name_scope=ignore_name_scope), tensor)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Sequence[Tensor]:
    """Allgather each tensor of a list, as one unit."""
    return _group(Call(ALLGATHER, process_set, name, grouped=True, ignore_name_scope=ignore_name_scope), tensors)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """The tensor of the (global) rank `root_rank`."""
    return _one(Call(BROADCAST, process_set, name, root=root_rank, ignore_name_scope=ignore_name_scope), tensor)


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Give variables the values of the (global) rank `root_rank`, all in one unit. The assignments, for a Session."""
    variables = list(variables)
    values = _group(Call(BROADCAST, process_set, name, grouped=True, root=root_rank), variables)
    return [variable.assign(value) for variable, value in zip(variables, values, strict=True)]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to every rank: equal shares, or `splits[i]` rows to member i; then (output, received splits)."""
    call = Call(ALLTOALL, process_set, name, ignore_name_scope=ignore_name_scope)
    if splits is None:
        return _one(call, tensor)
    output, received = ways.run(call, [tf.convert_to_tensor(tensor)], tf.cast(tf.convert_to_tensor(splits), tf.int32))
    return output, received


# Join and queries


def join() -> Tensor:
    """Take part in the others' allreduces with zeros until all ranks have joined; the rank that joined last."""
    return ways.join()


def size_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """The number of ranks in a process set when the graph runs, which elastic training may change."""
    return ways.topology("size", process_set_id, name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """1 if this rank is a member of the process set when the graph runs, else 0."""
    return ways.topology("process_set_included", process_set_id, name)


def local_size_op(name: str | None = None) -> Tensor:
    """The number of ranks on this host when the graph runs."""
    return ways.topology("local_size", name=name)


def rank_op(name: str | None = None) -> Tensor:
    """This process's rank when the graph runs."""
    return ways.topology("rank", name=name)


def local_rank_op(name: str | None = None) -> Tensor:
    """This process's rank on its host when the graph runs."""
    return ways.topology("local_rank", name=name)
