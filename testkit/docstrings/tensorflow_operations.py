# SPDX-License-Identifier: Apache-2.0
"""Texts of TensorFlow's operations, which raise errors of TensorFlow."""

from __future__ import annotations

from dataclasses import replace

from testkit.docstrings import operations
from testkit.docstrings.entry import Entry

RAISES = {
    "tf.errors.InvalidArgumentError": "An argument is not valid, another operation with this name is pending, or this "
    "rank is not a member of the process set.",
    "tf.errors.FailedPreconditionError": "The ranks passed tensors or arguments that do not fit together, or the "
    "engine is not running.",
    "tf.errors.UnknownError": "A rank failed or left the job.",
}
ARGUMENTS = {
    "name": "Name under which the ranks match this operation. By default it is made from the tensor's name in a graph, "
    "and from the kind of operation elsewhere.",
    "ignore_name_scope": "Leave the name scopes of the graph out of the name.",
}
DEVICES = {
    "device_dense": "Device for operations on dense tensors. By default TensorFlow chooses.",
    "device_sparse": "Device for operations on tf.IndexedSlices. By default TensorFlow chooses.",
}
_INT8 = (
    "hvd.Compression.none, fp16 or bf16 (the type in which floating-point values are sent), hvd.Compression.int8() "
    "(what leaves a host travels as 8-bit numbers; op must be Average or Sum), or your own subclass of hvd.Compressor."
)
_SLICES = (
    "A tensor. It does not change. tf.IndexedSlices are gathered from all ranks instead of reduced, for which op must "
    "be "
    "Average or Sum."
)
_NO_SLICES = "`op` or a factor is not supported for tf.IndexedSlices, or hvd.Adasum is used in a process set."


def _operation(entry: Entry, *names: str) -> Entry:
    """Return the text with TensorFlow's errors and the texts of some arguments."""
    added = {name: {**ARGUMENTS, **DEVICES}[name] for name in names}
    about = f"{entry.about} Gradients flow through this operation.".strip()
    return replace(entry, about=about, raises=RAISES, args={**entry.args, **added})


def _scatter(entry: Entry) -> Entry:
    more = {
        "tf.errors.AbortedError": "`op` is neither Average nor Sum.",
        "NotImplementedError": "A tensor is tf.IndexedSlices.",
    }
    return replace(entry, raises={**entry.raises, **more})


_QUESTION = "The value is that of the world in which the graph runs, which elastic training may change."


def _question(summary: str, result: str, example: str, **args: str) -> Entry:
    texts = {"name": "Name of the operation in the graph.", **args}
    return Entry(summary, _QUESTION, texts, result, {}, example)


_SET_ID = "Number of the process set, its attribute `process_set_id`. 0 is the set of all ranks."

OPERATIONS = {
    "allreduce": _operation(operations.ALLREDUCE, "name", "ignore_name_scope", "device_dense", "device_sparse")
    .but(tensor=_SLICES, compression=_INT8)
    .raising(NotImplementedError=_NO_SLICES),
    "grouped_allreduce": _operation(
        operations.GROUPED_ALLREDUCE, "name", "ignore_name_scope", "device_dense", "device_sparse"
    )
    .but(
        tensors="List of tensors. They do not change. tf.IndexedSlices among them are gathered, as another unit.",
        compression=_INT8,
    )
    .raising(NotImplementedError=_NO_SLICES),
    "allgather": _operation(operations.ALLGATHER, "name", "ignore_name_scope"),
    "grouped_allgather": _operation(operations.GROUPED_ALLGATHER, "name", "ignore_name_scope"),
    "broadcast": _operation(operations.BROADCAST, "name", "ignore_name_scope"),
    "alltoall": _operation(operations.ALLTOALL, "name", "ignore_name_scope"),
    "reducescatter": _scatter(_operation(operations.REDUCESCATTER, "name", "ignore_name_scope", "device_dense")),
    "grouped_reducescatter": _scatter(_operation(operations.GROUPED_REDUCESCATTER, "device_dense")),
    "broadcast_": Entry(
        "Overwrite variables with those of one rank, as one unit.",
        "",
        {"variables": "List of variables.", "name": ARGUMENTS["name"]},
        "The assignments. In a graph, run them.",
        RAISES,
        "variable = tf.Variable([1.0 + hvd.rank()])\n"
        "hvd.broadcast_([variable], root_rank=0)  # the variable is now [1.0] on all ranks",
    ),
    "join": replace(
        operations.MEETINGS["join"],
        args={},
        returns="A tensor with the rank that joined last.",
        raises={"tf.errors.UnknownError": "A rank failed or left the job."},
        example="last = hvd.join()\nint(last) in range(hvd.size())  # on 2 ranks: True",
    ),
    "size_op": _question(
        "Return a tensor with the number of ranks in a process set.",
        "A scalar tensor of int32.",
        "size = hvd.size_op()\nint(size)  # on 2 ranks: 2",
        process_set_id=_SET_ID,
    ),
    "process_set_included_op": _question(
        "Return a tensor that says if this rank is a member of a process set.",
        "A scalar tensor of int32, 1 for members and 0 for other ranks.",
        "included = hvd.process_set_included_op()\nint(included)  # on 2 ranks: 1",
        process_set_id=_SET_ID,
    ),
    "local_size_op": _question(
        "Return a tensor with the number of ranks on this host.",
        "A scalar tensor of int32.",
        "size = hvd.local_size_op()\nint(size) == hvd.local_size()  # on 2 ranks: True",
    ),
    "rank_op": _question(
        "Return a tensor with this process's rank.",
        "A scalar tensor of int32.",
        "rank = hvd.rank_op()\nint(rank)  # on rank 1 of 2: 1",
    ),
    "local_rank_op": _question(
        "Return a tensor with this process's number among the ranks on its host.",
        "A scalar tensor of int32.",
        "rank = hvd.local_rank_op()\nint(rank) == hvd.local_rank()  # on 2 ranks: True",
    ),
}
