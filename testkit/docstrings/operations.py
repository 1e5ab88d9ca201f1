# SPDX-License-Identifier: Apache-2.0
"""Texts of the collectives, which are the same for $tensors of all frameworks."""

from __future__ import annotations

from dataclasses import replace

from testkit.docstrings.entry import Entry

_LOST = "A rank failed or left the job."
_MISMATCH = "The ranks passed $tensors or arguments that do not fit together."
_AT_CALL = (
    "An argument is not valid, another operation with this name is pending, or this rank is not a member of the "
    "process set."
)
_RAISES = {"ValueError": _AT_CALL, "HorovodMismatchError": _MISMATCH, "HorovodInternalError": _LOST}
_STARTED = {"ValueError": _AT_CALL}
_NOT_SCATTERED = "`op` is neither Average nor Sum."
_SCATTER_RAISES = {
    **_RAISES,
    "HorovodInternalError": "A rank failed or left the job, or `op` is neither Average nor Sum.",
}
_HANDLE = "A handle for poll() and synchronize()."
_LATER = "Do not change $a_tensor that an operation uses before the operation has completed."
_TARGET = "The $tensor that this rank contributes. The result overwrites it."
_TARGETS = "List of $tensors that this rank contributes. The results overwrite them."
_GROUP = "No operation of the group starts before every rank has submitted the whole group."
_NO_COMPRESSION = {
    "compression": "hvd.Compression.none, hvd.Compression.fp16 or hvd.Compression.bf16 (the type in which "
    "floating-point values are reduced), or your own subclass of hvd.Compressor.",
}
_SCATTER_OP = {"op": "hvd.Average (the default) or hvd.Sum."}

ALLREDUCE = Entry(
    "Reduce $a_tensor over all ranks and return the result on every rank.",
    "",
    {},
    "A new $tensor with the shape of the input.",
    _RAISES,
    "tensor = $full\nhvd.allreduce(tensor, op=hvd.Sum)$list  # on 2 ranks: [1.0, 1.0]",
)
GROUPED_ALLREDUCE = Entry(
    "Reduce each $tensor of a list over all ranks, as one unit.",
    _GROUP,
    {},
    "The reduced $tensors, in the order of the list.",
    _RAISES,
    "first, second = hvd.grouped_allreduce([$full, $other])\nfirst$list  # on 2 ranks: [0.5, 0.5]",
)
ALLGATHER = Entry(
    "Concatenate the $tensors of all ranks along the first dimension.",
    "",
    {"tensor": "The $tensor that this rank contributes. It may differ between ranks in its first dimension only."},
    "A new $tensor with the rows of all ranks, in the order of the ranks.",
    _RAISES,
    "tensor = $other[: hvd.rank() + 1]  # one row on rank 0, two on rank 1\n"
    "hvd.allgather(tensor)$list  # on 2 ranks: [0.0, 0.0, 0.0]",
)
GROUPED_ALLGATHER = Entry(
    "Concatenate the $tensors of all ranks, for each $tensor of a list, as one unit.",
    _GROUP,
    {"tensors": "List of $tensors. Each may differ between ranks in its first dimension only."},
    "The concatenated $tensors, in the order of the list.",
    _RAISES,
    "first, second = hvd.grouped_allgather([$full, $other])\nfirst$list  # on 2 ranks: [0.0, 0.0, 1.0, 1.0]",
)
BROADCAST = Entry(
    "Send one rank's $tensor to all ranks.",
    "",
    {"tensor": "The root's values. The other ranks pass $a_tensor of the same shape and type."},
    "A new $tensor with the root's values.",
    _RAISES,
    "tensor = $full\nhvd.broadcast(tensor, root_rank=1)$list  # on 2 ranks: [1.0, 1.0]",
)
ALLTOALL = Entry(
    "Send rows of $a_tensor to every rank, and receive rows from every rank.",
    "",
    {
        "tensor": "The rows to send, those for the first rank first.",
        "splits": "Number of rows for each rank, as a list or $a_tensor of integers. Rows beyond their sum are not "
        "sent. By default all ranks get an equal share.",
    },
    "The received rows, in the order of the ranks. If `splits` is given, a tuple of these rows and the number of rows "
    "from each rank.",
    _RAISES,
    "tensor = $ints\nhvd.alltoall(tensor)$list  # on rank 0 of 2: [10, 10]",
)
REDUCESCATTER = Entry(
    "Reduce $a_tensor over all ranks and return this rank's share of the rows.",
    "If the rows do not divide evenly, each of the first ranks gets one more.",
    {**_SCATTER_OP, **_NO_COMPRESSION},
    "A new $tensor with this rank's rows of the result.",
    _SCATTER_RAISES,
    "tensor = $rows\nhvd.reducescatter(tensor, op=hvd.Sum)$list  # on rank 0 of 2: [[2.0]]",
)
GROUPED_REDUCESCATTER = Entry(
    "Reduce each $tensor of a list over all ranks, as one unit, and return this rank's shares of the rows.",
    _GROUP,
    {**_SCATTER_OP, **_NO_COMPRESSION},
    "This rank's rows of each result, in the order of the list.",
    _SCATTER_RAISES,
    "(first,) = hvd.grouped_reducescatter([$rows], op=hvd.Sum)\nfirst$list  # on rank 0 of 2: [[2.0]]",
)


def _asynchronous(of: Entry, summary: str, result: str, example: str, about: str = "") -> Entry:
    args = {name: text for name, text in of.args.items() if name != "compression"}
    started = replace(of, args=args).but(summary, about or _LATER, f"{_HANDLE} {result}", example)
    at_call = _NOT_SCATTERED if of.raises == _SCATTER_RAISES else ""
    return started.raising(HorovodMismatchError="", HorovodInternalError=at_call)


ALLREDUCE_ASYNC = _asynchronous(
    ALLREDUCE,
    "Start to reduce $a_tensor over all ranks.",
    "synchronize() returns a new $tensor.",
    "handle = hvd.allreduce_async($full, op=hvd.Sum)\nhvd.synchronize(handle)$list  # on 2 ranks: [1.0, 1.0]",
)
GROUPED_ALLREDUCE_ASYNC = _asynchronous(
    GROUPED_ALLREDUCE,
    "Start to reduce each $tensor of a list over all ranks, as one unit.",
    "synchronize() returns the reduced $tensors.",
    "handle = hvd.grouped_allreduce_async([$full, $other])\nhvd.synchronize(handle)[0]$list  # on 2 ranks: [0.5, 0.5]",
)
ALLGATHER_ASYNC = _asynchronous(
    ALLGATHER,
    "Start to concatenate the $tensors of all ranks along the first dimension.",
    "synchronize() returns a new $tensor.",
    "handle = hvd.allgather_async($full)\nhvd.synchronize(handle)$list  # on 2 ranks: [0.0, 0.0, 1.0, 1.0]",
)
GROUPED_ALLGATHER_ASYNC = _asynchronous(
    GROUPED_ALLGATHER,
    "Start to concatenate the $tensors of all ranks, for each $tensor of a list, as one unit.",
    "synchronize() returns the concatenated $tensors.",
    "handle = hvd.grouped_allgather_async([$full, $other])\n"
    "hvd.synchronize(handle)[0]$list  # on 2 ranks: [0.0, 0.0, 1.0, 1.0]",
)
BROADCAST_ASYNC = _asynchronous(
    BROADCAST,
    "Start to send one rank's $tensor to all ranks.",
    "synchronize() returns a new $tensor.",
    "handle = hvd.broadcast_async($full, root_rank=1)\nhvd.synchronize(handle)$list  # on 2 ranks: [1.0, 1.0]",
)
ALLTOALL_ASYNC = _asynchronous(
    ALLTOALL,
    "Start to send rows of $a_tensor to every rank.",
    "synchronize() returns a tuple of the received rows and the number of rows from each rank.",
    "handle = hvd.alltoall_async($ints)\nhvd.synchronize(handle)[0]$list  # on rank 0 of 2: [10, 10]",
)
REDUCESCATTER_ASYNC = _asynchronous(
    REDUCESCATTER,
    "Start to reduce $a_tensor over all ranks, for this rank's share of the rows.",
    "synchronize() returns this rank's rows of the result.",
    "handle = hvd.reducescatter_async($rows, op=hvd.Sum)\nhvd.synchronize(handle)$list  # on rank 0 of 2: [[2.0]]",
)
GROUPED_REDUCESCATTER_ASYNC = _asynchronous(
    GROUPED_REDUCESCATTER,
    "Start to reduce each $tensor of a list over all ranks, as one unit, for this rank's shares of the rows.",
    "synchronize() returns this rank's rows of each result.",
    "handle = hvd.grouped_reducescatter_async([$rows], op=hvd.Sum)\n"
    "hvd.synchronize(handle)[0]$list  # on rank 0 of 2: [[2.0]]",
)
ALLREDUCE_ = ALLREDUCE.but(
    "Reduce $a_tensor over all ranks, in place.",
    returns="The $tensor that was passed, with the result in it.",
    example="tensor = $full\nhvd.allreduce_(tensor)$list  # on 2 ranks: [0.5, 0.5]",
    tensor=_TARGET,
)
ALLREDUCE_ASYNC_ = ALLREDUCE_ASYNC.but(
    "Start to reduce $a_tensor over all ranks, in place.",
    returns="A handle for poll() and synchronize(). synchronize() returns the $tensor that was passed.",
    example="handle = hvd.allreduce_async_($full, op=hvd.Max)\nhvd.synchronize(handle)$list  # on 2 ranks: [1.0, 1.0]",
    tensor=_TARGET,
)
GROUPED_ALLREDUCE_ = GROUPED_ALLREDUCE.but(
    "Reduce each $tensor of a list over all ranks, as one unit and in place.",
    returns="The $tensors that were passed, with the results in them.",
    example="tensors = [$full, $other]\nhvd.grouped_allreduce_(tensors)[0]$list  # on 2 ranks: [0.5, 0.5]",
    tensors=_TARGETS,
)
GROUPED_ALLREDUCE_ASYNC_ = GROUPED_ALLREDUCE_ASYNC.but(
    "Start to reduce each $tensor of a list over all ranks, as one unit and in place.",
    returns="A handle for poll() and synchronize(). synchronize() returns the $tensors that were passed.",
    example="handle = hvd.grouped_allreduce_async_([$full, $other])\n"
    "hvd.synchronize(handle)[0]$list  # on 2 ranks: [0.5, 0.5]",
    tensors=_TARGETS,
)
BROADCAST_ = BROADCAST.but(
    "Overwrite $a_tensor with one rank's values, on all ranks.",
    returns="The $tensor that was passed, with the root's values in it.",
    example="tensor = $full\nhvd.broadcast_(tensor, root_rank=1)$list  # on 2 ranks: [1.0, 1.0]",
    tensor="The root's values. On other ranks, $a_tensor of the same shape and type that they overwrite.",
)
BROADCAST_ASYNC_ = BROADCAST_ASYNC.but(
    "Start to overwrite $a_tensor with one rank's values, on all ranks.",
    returns="A handle for poll() and synchronize(). synchronize() returns the $tensor that was passed.",
    example="handle = hvd.broadcast_async_($full, root_rank=1)\nhvd.synchronize(handle)$list  # on 2 ranks: [1.0, 1.0]",
    tensor="The root's values. On other ranks, $a_tensor of the same shape and type that they overwrite.",
)

BLOCKING = {
    "allreduce": ALLREDUCE,
    "grouped_allreduce": GROUPED_ALLREDUCE,
    "allgather": ALLGATHER,
    "grouped_allgather": GROUPED_ALLGATHER,
    "broadcast": BROADCAST,
    "alltoall": ALLTOALL,
    "reducescatter": REDUCESCATTER,
    "grouped_reducescatter": GROUPED_REDUCESCATTER,
}
IN_PLACE = {"allreduce_": ALLREDUCE_, "grouped_allreduce_": GROUPED_ALLREDUCE_, "broadcast_": BROADCAST_}
ASYNCHRONOUS = {
    "allreduce_async": ALLREDUCE_ASYNC,
    "grouped_allreduce_async": GROUPED_ALLREDUCE_ASYNC,
    "allgather_async": ALLGATHER_ASYNC,
    "grouped_allgather_async": GROUPED_ALLGATHER_ASYNC,
    "broadcast_async": BROADCAST_ASYNC,
    "alltoall_async": ALLTOALL_ASYNC,
    "reducescatter_async": REDUCESCATTER_ASYNC,
    "grouped_reducescatter_async": GROUPED_REDUCESCATTER_ASYNC,
    "poll": Entry(
        "Return True if an asynchronous operation has completed, so that synchronize() would return at once.",
        args={"handle": "What the asynchronous function returned."},
        returns="True if the operation has completed or failed.",
        raises={"ValueError": "The handle is unknown, or synchronize() has returned its result already."},
        example="handle = hvd.allreduce_async($full)\nwhile not hvd.poll(handle): time.sleep(0.001)  # or other work",
    ),
    "synchronize": Entry(
        "Wait for an asynchronous operation and return its result.",
        args={"handle": "What the asynchronous function returned."},
        returns="The result of the operation. None if the result was returned before, or the handle is unknown.",
        raises={
            "HorovodMismatchError": _MISMATCH,
            "HorovodInternalError": _LOST,
        },
        example="handle = hvd.allreduce_async($full)\nhvd.synchronize(handle)$list  # on 2 ranks: [0.5, 0.5]",
    ),
}
ASYNCHRONOUS_IN_PLACE = {
    "allreduce_async_": ALLREDUCE_ASYNC_,
    "grouped_allreduce_async_": GROUPED_ALLREDUCE_ASYNC_,
    "broadcast_async_": BROADCAST_ASYNC_,
}
MEETINGS = {
    "barrier": Entry(
        "Wait until every rank of the process set has called this function.",
        raises={"ValueError": "This rank is not a member of the process set.", "HorovodInternalError": _LOST},
        example="hvd.barrier()\nprint('all ranks are here')",
    ),
    "join": Entry(
        "Take part in the other ranks' allreduces with zeros, until all ranks have called this function.",
        "Call it on a rank that has no more data. Operations other than allreduce fail until all ranks have joined.",
        {"device": "Has no effect."},
        "The rank that joined last.",
        {"HorovodInternalError": _LOST},
        "last = hvd.join()\nlast in range(hvd.size())  # on 2 ranks: True",
    ),
}
POINT_TO_POINT = {
    "send": Entry(
        "Send $a_tensor to one rank, which receives it with recv().",
        args={
            "tensor": "The values to send.",
            "dst": "The rank that receives.",
            "tag": "Number that the receiver passes too.",
        },
        raises={"ValueError": "An argument is not valid.", "HorovodInternalError": _LOST},
        example="tensor = $full\n"
        "hvd.send(tensor, 1) if hvd.rank() == 0 else hvd.recv(tensor, 0)$list  # on rank 1 of 2: [0.0, 0.0]",
    ),
    "recv": Entry(
        "Overwrite $a_tensor with values that one rank sends with send().",
        args={
            "tensor": "The $tensor to overwrite. It must have the size of the one that is sent.",
            "src": "The rank that sends.",
            "tag": "Number that the sender passes too.",
        },
        returns="The $tensor that was passed.",
        raises={"ValueError": "An argument is not valid.", "HorovodInternalError": _LOST},
        example="tensor = $full\n"
        "hvd.recv(tensor, 0)$list if hvd.rank() == 1 else hvd.send(tensor, 1)  # on rank 1 of 2: [0.0, 0.0]",
    ),
}
POINT_TO_POINT["send_async"] = (
    POINT_TO_POINT["send"]
    .but(
        "Start to send $a_tensor to one rank.",
        "Do not change the $tensor before the operation has completed.",
        _HANDLE,
        "start = hvd.recv_async if hvd.rank() else hvd.send_async\n"
        "hvd.synchronize(start($full, 1 - hvd.rank()))$list  # on 2 ranks: [0.0, 0.0]",
    )
    .raising(HorovodInternalError="")
)
POINT_TO_POINT["recv_async"] = (
    POINT_TO_POINT["recv"]
    .but(
        "Start to overwrite $a_tensor with values that one rank sends.",
        "Do not use the $tensor before the operation has completed.",
        "A handle for poll() and synchronize(). synchronize() returns the $tensor that was passed.",
        "start = hvd.send_async if hvd.rank() else hvd.recv_async\n"
        "hvd.synchronize(start($full, 1 - hvd.rank()))$list  # on 2 ranks: [1.0, 1.0]",
    )
    .raising(HorovodInternalError="")
)
