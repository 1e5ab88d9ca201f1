# SPDX-License-Identifier: Apache-2.0
"""Texts of the MXNet API, whose operations return before they have run."""

from __future__ import annotations

from dataclasses import replace

from testkit.docstrings import operations, shared
from testkit.docstrings.entry import Entry
from testkit.docstrings.training import COMPRESSION, COMPRESSOR

_LATER = "MXNet runs the operation later. If it fails, reading the result raises the error."
_WAITS = (
    "MXNet runs the operation later, but the call waits for the sizes of the result. If the operation fails later, "
    "reading the result raises the error."
)
_LOST = {"HorovodInternalError": "A rank failed or left the job."}
_WAITING = ("allgather", "grouped_allgather", "alltoall")
_MORE = {
    "priority": "MXNet's priority of the operation.",
    "op": "hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max or hvd.Product.",
}
_TRAINING = {
    "gradient_predivide_factor": "Divide gradients by this factor before they are summed, and by the rest of the "
    "number "
    "of ranks afterwards.",
    "num_groups": "Number of groups in which gradients are reduced. 0 makes no groups.",
}


def _queued(name: str, entry: Entry) -> Entry:
    """Return the text of an operation that MXNet runs later."""
    about = f"{entry.about} {_WAITS if name in _WAITING else _LATER}".strip()
    scatters = "reducescatter" in name
    more = _MORE if "allreduce" in name else {"priority": _MORE["priority"]}
    args = {key: text for key, text in entry.args.items() if key != "compression"} | more
    raises = {"AssertionError": "`op` is not supported."} if scatters or "allreduce" in name else {}
    return replace(entry, about=about, args=args, raises={**entry.raises, **_LOST, **raises})


TABLE = {
    **{name: _queued(name, entry) for name, entry in (operations.BLOCKING | operations.IN_PLACE).items()},
    "shutdown": shared.TABLE["shutdown"].but(
        about="Operations that MXNet has queued run first. hvd.init() may be called again. A program that ends calls "
        "this "
        "function itself.",
    ),
    "broadcast_parameters": Entry(
        "Overwrite parameters with those of one rank.",
        "A parameter that has no shape yet is broadcast when the first batch gives it one.",
        {
            "params": "What network.collect_params() returns, or a dict of NDArrays.",
            "prefix": "Prefix of the names under which ranks match. It keeps several models apart.",
        },
        "",
        {
            "ValueError": "`params` is not a dict, or a parameter is not initialized.",
            "HorovodMismatchError": "The parameters of the ranks differ in shape or type.",
            "HorovodInternalError": "A rank failed or left the job.",
        },
        "weights = {'w': mx.nd.zeros(2) + hvd.rank()}\n"
        "hvd.broadcast_parameters(weights, root_rank=0)  # weights['w'] is now zero on all ranks",
    ),
    "DistributedOptimizer": Entry(
        "Optimizer that sums each gradient over all ranks before it updates the parameter.",
        "The `rescale_grad` of the wrapped optimizer holds the division by the number of ranks. Use it with "
        "Module.fit() "
        "and in your own training loops; for gluon, use hvd.DistributedTrainer.",
        {"optimizer": "The optimizer to wrap, of mx.optimizer.", **_TRAINING},
        example="optimizer = mx.optimizer.SGD(learning_rate=0.1)\noptimizer = hvd.DistributedOptimizer(optimizer)",
    ),
    "DistributedTrainer": Entry(
        "Trainer of gluon that sums gradients over all ranks, instead of through a kvstore.",
        "Pass the batch size of this rank to step().",
        {
            "params": "What network.collect_params() returns.",
            "optimizer": "Name of an optimizer, or an optimizer that is not distributed.",
            "optimizer_params": "Arguments of the optimizer, as a dict.",
            "compression": "hvd.Compression.none or hvd.Compression.fp16, or your own subclass of hvd.Compressor.",
            "prefix": "Prefix of the names under which ranks match. It keeps several trainers apart.",
            **_TRAINING,
        },
        example="network = mx.gluon.nn.Dense(1, in_units=2)\nnetwork.initialize()\n"
        "trainer = hvd.DistributedTrainer(network.collect_params(), 'sgd', {'learning_rate': 0.1})",
    ),
    "Compression": COMPRESSION.but(
        about="`none` and `fp16` are classes for hvd.DistributedTrainer. MXNet refuses the methods with arguments.",
        example="network = mx.gluon.nn.Dense(1, in_units=2)\nnetwork.initialize()\n"
        "trainer = hvd.DistributedTrainer(network.collect_params(), 'sgd', compression=hvd.Compression.fp16)",
    ),
    "Compressor": COMPRESSOR,
}
