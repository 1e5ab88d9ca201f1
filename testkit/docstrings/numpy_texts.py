# SPDX-License-Identifier: Apache-2.0
"""Texts of the NumPy API."""

from __future__ import annotations

from testkit.docstrings import operations
from testkit.docstrings.entry import Entry
from testkit.docstrings.training import COMPRESSION, COMPRESSOR, RUN

_INT8 = (
    "hvd.Compression.none, fp16 or bf16 (the type in which floating-point values are sent), hvd.Compression.int8() "
    "(what leaves a host travels as 8-bit numbers; op must be Average or Sum), or your own subclass of hvd.Compressor."
)

TABLE = {
    **operations.BLOCKING,
    **operations.IN_PLACE,
    **operations.ASYNCHRONOUS,
    **operations.ASYNCHRONOUS_IN_PLACE,
    **operations.MEETINGS,
    **operations.POINT_TO_POINT,
    "allreduce": operations.ALLREDUCE.but(
        tensor="The array that this rank contributes, or what np.asarray() accepts. It does not change.",
        compression=_INT8,
    ),
    "grouped_allreduce": operations.GROUPED_ALLREDUCE.but(compression=_INT8),
    "broadcast_parameters": Entry(
        "Overwrite arrays with those of one rank.",
        args={"params": "A dict of arrays, or a list of arrays or of (name, array). All ranks pass the same shapes."},
        raises={
            "ValueError": "`params` is neither a dict nor a list.",
            "HorovodMismatchError": "The arrays of the ranks differ in shape or type.",
            "HorovodInternalError": "A rank failed or left the job.",
        },
        example="weights = {'w': np.zeros(2) + hvd.rank()}\n"
        "hvd.broadcast_parameters(weights, root_rank=0)  # weights['w'] is now array([0., 0.]) on all ranks",
    ),
    "shared_zeros": Entry(
        "Return an array of zeros in shared memory.",
        "If all ranks of a host pass such arrays to allreduce_(), nothing is copied first. After hvd.shutdown() it is "
        "an "
        "ordinary array. If shared memory has no room, a warning says so and the array lies in ordinary memory.",
        {"shape": "Shape of the array.", "dtype": "Any type but Python objects."},
        "The new array.",
        {
            "ValueError": "The type holds Python objects.",
            "HorovodNotInitializedError": "Call hvd.init() first.",
        },
        "array = hvd.shared_zeros((2, 3), np.float32)\nhvd.allreduce_(array).shape  # on 2 ranks: (2, 3)",
    ),
    "codec": Entry(
        "Return the codec of a compression method, which encodes arrays of float32 to bytes and decodes them.",
        "A codec keeps nothing: residuals belong to the caller.",
        {"method": "hvd.Compression.int8(), onebit() or topk()."},
        "An object with the methods encode(), decode(), decode_sum() and wire_bytes().",
        {
            "TypeError": "The argument is no compression method, or it is a class instead of an instance.",
            "ValueError": "The method has no codec.",
        },
        "codec = hvd.codec(hvd.Compression.int8())\n"
        "codec.decode(codec.encode(np.ones(2, np.float32)), 2).tolist()  # on 2 ranks: [1.0, 1.0]",
    ),
    "Compression": COMPRESSION.but(
        "Ways to send fewer bytes: classes for `compression`, and methods with arguments.",
        "`none`, `fp16` and `bf16` are classes that every function with `compression` accepts; for float64, bf16 needs "
        "the ml_dtypes package. allreduce() and grouped_allreduce() also accept `int8()`. No function of this API "
        "accepts `onebit()`, `topk()`, `powersgd()` or `dgc()` as `compression`; codec() accepts the first two.",
        example="array = np.ones(2, np.float32)\n"
        "hvd.allreduce(array, compression=hvd.Compression.fp16).tolist()  # on 2 ranks: [1.0, 1.0]",
    ),
    "Compressor": COMPRESSOR,
    "NumpyState": Entry(
        "State of a training with NumPy, for hvd.elastic.run().",
        "Every keyword becomes an attribute. commit() saves all values. sync() gives all ranks what rank 0 saved last; "
        "arrays are sent as they are, other values are pickled.",
        {"kwargs": "Arrays, lists and dicts of them, or any other Python values."},
        "",
        {"TypeError": "A value cannot be copied."},
        "state = hvd.elastic.NumpyState(weights=np.zeros(2), step=0)\nstate.step += 1",
    ),
    "run": RUN.but(
        example="train = hvd.elastic.run(lambda state: state.step + 1)\n"
        "train(hvd.elastic.NumpyState(step=0))  # on 2 ranks: 1"
    ),
}
