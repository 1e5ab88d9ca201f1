# SPDX-License-Identifier: Apache-2.0
"""Texts that several frameworks share beside operations: compression, optimizers, elastic training."""

from __future__ import annotations

from testkit.docstrings.entry import Entry

COMPRESSION = Entry(
    "Ways to send fewer bytes: classes for `compression`, and methods with arguments.",
    "`none`, `fp16` and `bf16` are classes that every function with `compression` accepts. `int8()`, `onebit()`, "
    "`topk()`, `powersgd()` and `dgc()` are methods for hvd.DistributedOptimizer(); call them with their arguments. By "
    "default they compress only what leaves a host.",
    example="tensor = $other\nhvd.allreduce(tensor, compression=hvd.Compression.fp16)$list  # on 2 ranks: [0.0, 0.0]",
)
COMPRESSOR = Entry(
    "Base class for your own compressors.",
    "Override two static methods. `compress(tensor)` returns the $tensor to send and a context; "
    "`decompress(tensor, ctx)` returns the result in the original type.",
    example="half = hvd.Compression.fp16\nissubclass(half, hvd.Compressor)  # on 2 ranks: True",
)
RUN = Entry(
    "Decorate a training function, so that training continues from the last commit when workers come or go.",
    "Before the function is called, all ranks receive the state of rank 0, unless workers have only left. If a rank is "
    "lost, the state is restored and the function is called again. Run no collective before the decorated function, "
    "because a new worker would run it alone.",
    {"func": "A function whose first argument is the state, such as `train(state)`."},
    "The decorated function. It returns what `func` returns.",
    {
        "HorovodMismatchError": "The decorated function: the ranks disagree, which a restart cannot mend.",
        "HorovodInitializationError": "The decorated function: the remaining ranks could not meet again.",
        "HorovodCheckpointError": "The decorated function: training cannot continue from its checkpoints.",
    },
)
OPTIMIZER_ARGUMENTS = {
    "optimizer": "The optimizer to wrap.",
    "named_parameters": "What model.named_parameters() returns. The names appear in messages and timelines. By "
    "default they are made from positions.",
    "backward_passes_per_step": "Number of backward passes whose gradients are accumulated before they are reduced.",
    "gradient_predivide_factor": "Divide gradients by this factor before the reduction, and by the rest of the number "
    "of "
    "ranks afterwards. It needs op=hvd.Average.",
    "num_groups": "Older argument for a number of groups; use `groups`.",
    "groups": "Number of groups in which gradients are reduced, or a list of lists of $tensors, each of which is "
    "reduced "
    "as one unit.",
    "sparse_as_dense": "Convert sparse gradients to dense ones before the reduction.",
    "op": "hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.",
    "compression": "hvd.Compression.none, fp16 or bf16, your own subclass of hvd.Compressor, or a method with "
    "arguments "
    "such as hvd.Compression.int8().",
}
