# SPDX-License-Identifier: Apache-2.0
"""Texts of the PyTorch API."""

from __future__ import annotations

from testkit.docstrings import operations
from testkit.docstrings.entry import Entry
from testkit.docstrings.local_sgd import LOCAL_SGD_ARGUMENTS
from testkit.docstrings.training import COMPRESSION, COMPRESSOR, OPTIMIZER_ARGUMENTS, RUN

_GRADIENT = "Gradients flow through this operation."
_INT8 = (
    "hvd.Compression.none, fp16 or bf16 (the type in which floating-point values are sent), hvd.Compression.int8() "
    "(what leaves a host travels as 8-bit numbers; op must be Average or Sum), or your own subclass of hvd.Compressor."
)
_LOST = "A rank failed or left the job."


def _differentiable(entry: Entry) -> Entry:
    return entry.but(about=f"{entry.about} {_GRADIENT}".strip())


TABLE = {
    **{name: _differentiable(entry) for name, entry in operations.BLOCKING.items()},
    **operations.IN_PLACE,
    **operations.ASYNCHRONOUS,
    **operations.ASYNCHRONOUS_IN_PLACE,
    **operations.MEETINGS,
    **operations.POINT_TO_POINT,
    "allreduce": _differentiable(operations.ALLREDUCE).but(compression=_INT8),
    "join": operations.MEETINGS["join"].but(
        device="The GPU on which this rank takes part in reductions of CUDA tensors, if it has had none itself so far. "
        "-1 means the current GPU."
    ),
    "synchronize": operations.ASYNCHRONOUS["synchronize"].raising(
        ValueError="A tensor of the operation was resized or got other memory in the meantime."
    ),
    "sparse_allreduce_async": Entry(
        "Start to reduce a sparse tensor over all ranks.",
        "The ranks gather indices and values; they do not send zeros.",
        {
            "tensor": "A tensor of layout torch.sparse_coo. Its dense shape must be equal on all ranks.",
            "op": "hvd.Average or hvd.Sum.",
        },
        "A function without arguments, which waits for the operation and returns the sparse result.",
        {"ValueError": "The tensor is not sparse, or the operation is neither Average nor Sum."},
        "finish = hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), name='eye', op=hvd.Sum)\n"
        "finish().to_dense().tolist()  # on 2 ranks: [[2.0, 0.0], [0.0, 2.0]]",
    ),
    "broadcast_parameters": Entry(
        "Overwrite tensors with those of one rank.",
        "Call it after the model is built or loaded, so that all ranks begin with the same parameters.",
        {
            "params": "What model.state_dict() or model.named_parameters() returns, or a list of tensors. A value in a "
            "dict that is not a tensor is replaced in the dict.",
        },
        "",
        {
            "ValueError": "`params` holds something else, or a lazy parameter that has no shape yet.",
            "HorovodMismatchError": "The tensors of the ranks differ in shape or type.",
            "HorovodInternalError": _LOST,
        },
        "model = torch.nn.Linear(2, 1)\nhvd.broadcast_parameters(model.state_dict(), root_rank=0)",
    ),
    "broadcast_optimizer_state": Entry(
        "Overwrite an optimizer's state and options with those of one rank.",
        "State that only the root has (it alone resumed from a checkpoint) is created on the other ranks. State that "
        "the "
        "root does not have is dropped. No parameter changes, and no optimizer makes a step.",
        {"optimizer": "The optimizer, wrapped or not.", "model": "Has no effect."},
        "",
        {
            "ValueError": "The optimizer is torch.optim.LBFGS, or its parameter groups differ from the root's.",
            "HorovodInternalError": _LOST,
        },
        "optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)\n"
        "hvd.broadcast_optimizer_state(optimizer, root_rank=0)",
    ),
    "DistributedOptimizer": Entry(
        "Wrap an optimizer so that it reduces gradients over all ranks of the process set before each step.",
        "Reductions start while backward() is still running and are complete when it returns; with "
        "HOROVOD_TORCH_WAIT_IN_BACKWARD=0 they may continue until step(). To clip gradients, call "
        "optimizer.synchronize() and then step() inside `with optimizer.skip_synchronize():`.",
        {
            **OPTIMIZER_ARGUMENTS,
            "gradient_as_bucket_view": "Keep gradients in memory that the ranks of a host, or of a GPU, share.",
        },
        "An optimizer of a class with the same name, which shares state and parameter groups with the original.",
        {
            "ValueError": "The optimizer is wrapped already, or arguments do not fit together.",
            "TypeError": "`compression` is a class of a method with arguments, without parentheses.",
        },
        "optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)\n"
        "optimizer = hvd.DistributedOptimizer(optimizer)",
    ),
    "OneBitAdam": Entry(
        "Return a distributed Adam that compresses to one bit what leaves a host, once its variance has settled.",
        "It begins as AdamW with dense gradients. When the variance has settled it is frozen, and ranks exchange the "
        "momentum as hvd.Compression.onebit() does. Do not wrap it with hvd.DistributedOptimizer().",
        {
            "params": "Parameters or parameter groups, as for torch.optim.AdamW.",
            "lr": "The learning rate.",
            "betas": "Decay of the momentum and of the variance.",
            "eps": "Number that is added to the root of the variance.",
            "weight_decay": "Decoupled weight decay.",
            "named_parameters": OPTIMIZER_ARGUMENTS["named_parameters"],
            "lr_warmup_steps": "Do not freeze the variance in this many first steps, in which the learning rate still "
            "rises.",
            "freeze_after": "Freeze the variance after this many steps. By default the variance decides. Its norm, "
            "compared with that of 1 / (1 - betas[1]) steps before, has to be at least 0.96.",
            "backward_passes_per_step": OPTIMIZER_ARGUMENTS["backward_passes_per_step"],
            "compression": "Arguments of hvd.Compression.onebit(), namely scope, exclude, min_bytes and "
            "error_feedback.",
        },
        "The optimizer, which reduces as hvd.DistributedOptimizer() does.",
        {"ValueError": "An argument is not valid."},
        "model = torch.nn.Linear(2, 1)\noptimizer = hvd.OneBitAdam(model.parameters(), lr=0.001)",
    ),
    "DiLoCo": Entry(
        "Return an optimizer with which workers train alone and exchange their weights in rounds.",
        "Each worker makes the inner optimizer's steps on its own. In a round, an outer optimizer moves the global "
        "weights towards the workers' average, and the workers continue from there with their inner state. All workers "
        "hold the same bits after a round. Call finish() of the returned optimizer on every rank when training ends.",
        {
            "inner": "The optimizer of each worker, usually AdamW.",
            "named_parameters": "What model.named_parameters() returns. Its names tell the layers of which fragments "
            "are made. By default each parameter is a layer.",
            **LOCAL_SGD_ARGUMENTS,
        },
        "The optimizer. Its parameter groups and its state are those of `inner`.",
        {"ValueError": "An argument is not valid."},
        "inner = torch.optim.AdamW(torch.nn.Linear(2, 1).parameters())\noptimizer = hvd.DiLoCo(inner, every=50)",
    ),
    "LocalSGD": Entry(
        "Return an optimizer with which workers train alone and average their weights in rounds.",
        "It is hvd.DiLoCo() whose outer rule takes the workers' average as it is.",
        {
            "optimizer": "The optimizer of each worker.",
            "every": LOCAL_SGD_ARGUMENTS["every"],
            "options": "More arguments of hvd.DiLoCo().",
        },
        "The optimizer. Its parameter groups and its state are those of `optimizer`.",
        {"ValueError": "An argument is not valid."},
        "inner = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)\n"
        "optimizer = hvd.LocalSGD(inner, every=10)",
    ),
    "SyncBatchNorm": Entry(
        "Batch normalization with the statistics of all ranks of the process set, for any number of dimensions.",
        "In eval mode, or in a set of one rank, it is ordinary batch normalization. "
        "`hvd.SyncBatchNorm.convert_sync_batchnorm(model)` replaces all layers of a model.",
        {
            "num_features": "Number of channels, the input's second dimension.",
            "eps": "Number that is added to the variance.",
            "momentum": "Weight of the new batch in the running statistics. None means their plain average.",
            "affine": "Learn a scale and an offset for each channel.",
            "track_running_stats": "Keep running statistics for eval mode.",
        },
        example="layer = hvd.SyncBatchNorm(3)\nlayer(torch.randn(4, 3, 8)).shape  # on 2 ranks: torch.Size([4, 3, 8])",
    ),
    "register_comm_hook": Entry(
        "Let a hook reduce the gradients of a distributed optimizer, bucket by bucket.",
        "The hook is a generator function. It receives a bucket of gradients, yields handles of collectives that it "
        "begins with the bucket's methods, receives their results, and returns the reduced bucket. Register the same "
        "hook on all ranks before the first backward pass; until then another hook may take its place. The hook is not "
        "called where no other rank takes part.",
        {
            "optimizer": "What hvd.DistributedOptimizer() returned.",
            "hook": "A generator function, or a callable object. If it has arguments, give it a describe() method or a "
            "repr() that shows them, because ranks compare the text.",
            "bucket_bytes": "Size of a bucket in bytes. The first rank's value counts.",
        },
        "",
        {
            "TypeError": "The optimizer is not distributed, or the hook cannot be called.",
            "ValueError": "The optimizer has another `op` than Average and Sum, compresses already, or has a parameter "
            "of "
            "an unsupported type; or bucket_bytes is below 1.",
        },
        "optimizer = hvd.DistributedOptimizer(torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1))\n"
        "hvd.register_comm_hook(optimizer, lambda bucket: (yield bucket.allreduce_async(bucket.tensor)))",
    ),
    "Compression": COMPRESSION.but(
        about=COMPRESSION.about + " Of the methods, allreduce() accepts `int8()` only.",
    ),
    "Compressor": COMPRESSOR,
    "TorchState": Entry(
        "State of a training with PyTorch, for hvd.elastic.run().",
        "commit() saves models, optimizers, samplers, schedulers and all other values; restore() loads what was saved; "
        "sync() gives all ranks the state of rank 0. A new model, optimizer or sampler that is assigned to its "
        "attribute is saved at once.",
        {
            "model": "The model, in the attribute `model`.",
            "optimizer": "The optimizer, in the attribute `optimizer`.",
            "kwargs": "More models, optimizers, samplers and schedulers, and any Python values, each in the attribute "
            "of "
            "its name.",
        },
        "",
        {"TypeError": "A value cannot be copied."},
        "state = hvd.elastic.TorchState(model=torch.nn.Linear(2, 1), epoch=0)\nstate.epoch += 1",
    ),
    "ElasticSampler": Entry(
        "Sampler that gives each rank its part of a data set, and remembers which samples an epoch has used.",
        "The order depends on the seed and the epoch alone. Put the sampler into the state, call record_batch() after "
        "every batch and set_epoch() at the end of every epoch. If the samples do not divide evenly, some are used "
        "twice, so that all ranks make as many steps.",
        {
            "dataset": "The data set, with a length.",
            "shuffle": "Use another order in each epoch.",
            "seed": "Seed of the order, equal on all ranks.",
        },
        example="sampler = hvd.elastic.ElasticSampler(range(10), shuffle=False)\n"
        "list(sampler)  # on rank 0 of 2: [0, 2, 4, 6, 8]",
    ),
    "run": RUN.but(
        example="train = hvd.elastic.run(lambda state: state.step + 1)\n"
        "train(hvd.elastic.TorchState(step=0))  # on 2 ranks: 1"
    ),
}
