# SPDX-License-Identifier: Apache-2.0
"""Texts of the two Keras APIs."""

from __future__ import annotations

from testkit.docstrings import local_sgd
from testkit.docstrings.entry import Entry
from testkit.docstrings.training import OPTIMIZER_ARGUMENTS

_VALUE = "A number, an array or a tensor."
_RESULT = "A tensor of Keras's backend."
_RAISES = {"HorovodInternalError": "A rank failed or left the job. On TensorFlow, an error of tf.errors."}
_MODEL = "keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])"
_COMPRESSORS = (
    "hvd.Compression.none, fp16 or bf16 (the type in which floating-point values are sent), or your own subclass of "
    "the "
    "backend's Compressor."
)
_OPTIMIZER = {
    **{name: text for name, text in OPTIMIZER_ARGUMENTS.items() if name != "named_parameters"},
    "name": "Name of the optimizer, which ranks also match.",
    "device_dense": "Has no effect.",
    "device_sparse": "Has no effect.",
    "groups": "Number of groups in which gradients are reduced, or a list of lists of variables. By default all "
    "gradients are one group.",
    "op": "hvd.Average (the default) or hvd.Sum.",
    "compression": "hvd.Compression.none, fp16 or bf16, your own subclass of the backend's Compressor, or on "
    "TensorFlow "
    "and PyTorch a method with arguments such as hvd.Compression.int8().",
    "average_aggregated_gradients": "Divide accumulated gradients by backward_passes_per_step.",
    "scale_local_gradients": "Divide the gradients of variables that stay on this rank by the number of ranks.",
}
_WRAPPED = {"ValueError": "The first argument is no Keras optimizer or is wrapped already, or arguments are not valid."}

DISTRIBUTED = Entry(
    "Return an optimizer of the same class that reduces gradients over all ranks before it applies them.",
    "It has the options and the state of the given optimizer. Models that are saved with it hold the original class, "
    "so "
    "they load without Horovod.",
    _OPTIMIZER,
    "The new optimizer.",
    _WRAPPED,
    "optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size()))\n"
    f"{_MODEL}.compile(loss='mse', optimizer=optimizer)",
)
TABLE = {
    "DistributedOptimizer": DISTRIBUTED,
    "PartialDistributedOptimizer": Entry(
        "Return an optimizer as DistributedOptimizer() does, which leaves the gradients of some layers on their rank.",
        "",
        {
            **{name: text for name, text in _OPTIMIZER.items() if name != "num_groups"},
            "local_layers": "A layer, or a list of layers.",
        },
        "The new optimizer.",
        _WRAPPED,
        example=f"model = {_MODEL}\n"
        "optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=model.layers[-1])",
    ),
    "allreduce": Entry(
        "Reduce a value over all ranks and return the result on every rank.",
        "",
        {
            "value": _VALUE,
            "average": "Deprecated; use `op`. False means hvd.Sum.",
            "compression": _COMPRESSORS,
        },
        _RESULT,
        _RAISES,
        "value = float(hvd.rank())\nfloat(hvd.allreduce(value, op=hvd.Sum))  # on 2 ranks: 1.0",
    ),
    "allgather": Entry(
        "Concatenate the values of all ranks along the first dimension.",
        "",
        {"value": "An array or a tensor. It may differ between ranks in its first dimension only."},
        _RESULT,
        _RAISES,
        "value = [float(hvd.rank())]\nnp.asarray(hvd.allgather(value)).tolist()  # on 2 ranks: [0.0, 1.0]",
    ),
    "broadcast": Entry(
        "Send one rank's value to all ranks.",
        "",
        {"value": "The root's value. The other ranks pass a value of the same shape and type."},
        _RESULT,
        _RAISES,
        "value = float(hvd.rank())\nfloat(hvd.broadcast(value, root_rank=1))  # on 2 ranks: 1.0",
    ),
    "reducescatter": Entry(
        "Reduce a value over all ranks and return this rank's share of the rows.",
        "If the rows do not divide evenly, each of the first ranks gets one more.",
        {"value": "An array or a tensor.", "op": "hvd.Average (the default) or hvd.Sum."},
        _RESULT,
        _RAISES,
        "value = [1.0, 2.0]\nnp.asarray(hvd.reducescatter(value)).tolist()  # on rank 1 of 2: [2.0]",
    ),
    "broadcast_global_variables": Entry(
        "Return an operation that overwrites all global variables of a TensorFlow 1 graph with those of one rank.",
        "Elsewhere use hvd.callbacks.BroadcastGlobalVariablesCallback.",
        returns="The operation.",
        raises={"RuntimeError": "There is no graph of TensorFlow 1."},
        example="callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)\n"
        "callbacks = [callback]  # for model.fit(..., callbacks=callbacks)",
    ),
    "load_model": Entry(
        "Load a model as keras.models.load_model() does, with a distributed optimizer.",
        "The optimizer has the state that was saved.",
        {
            "filepath": "The file of the model.",
            "custom_optimizers": "List of your own optimizer classes in the file.",
            "custom_objects": "Other objects in the file, by name.",
            "compression": "The argument of hvd.DistributedOptimizer().",
            "legacy_opts": "Has no effect.",
        },
        "The model. If the file holds no optimizer, the model is not compiled.",
        example="model.save(path)  # a compiled model\nmodel = hvd.load_model(path)",
    ),
    "is_version_greater_equal_than": Entry(
        "Return True if a version is at least another one.",
        "What follows the digits of a part, such as rc1 or +cpu, does not count.",
        {"ver": "A version such as '2.10.0'.", "target": "The version to compare it with."},
        "True if `ver` is not older than `target`.",
        example="hvd.is_version_greater_equal_than('2.10.0', '2.9')  # on 2 ranks: True",
    ),
    "KerasState": Entry(
        "State of a training with Keras, for hvd.elastic.run(): model, optimizer and Python values.",
        "commit() saves all of it; restore() writes what was saved; sync() gives all ranks the variables of rank 0, "
        "and "
        "the values that rank 0 saved last.",
        {
            "model": "The model. It must be built, so that it has weights.",
            "optimizer": "The optimizer. By default that of the model.",
            "kwargs": "Any Python values, such as `epoch` and `batch`, each in the attribute of its name.",
        },
        "",
        {"ValueError": "The model is not built."},
        f"model = {_MODEL}\nstate = hvd.elastic.KerasState(model, batch=0, epoch=0)",
    ),
}


def _elastic(name: str) -> str:
    return f"state = hvd.elastic.KerasState(model, batch=0, epoch=0)\ncallback = hvd.elastic.{name}(state)"


def _callback(call: str) -> str:
    return f"callback = hvd.callbacks.{call}\ncallbacks = [callback]  # for model.fit(..., callbacks=callbacks)"


_RATE = {
    "initial_lr": "The learning rate to begin with.",
    "momentum_correction": "Scale the optimizer's momentum with the learning rate.",
    "steps_per_epoch": "Number of batches of an epoch. By default what model.fit() knows.",
}
TABLE |= {
    "CommitStateCallback": Entry(
        "Callback that commits the state after batches and after every epoch.",
        "Pass it to model.fit() last.",
        {"state": "The elastic state.", "batches_per_commit": "Commit after this many batches."},
        example=_elastic("CommitStateCallback"),
    ),
    "UpdateBatchStateCallback": Entry(
        "Callback that keeps `state.batch` at the batch of the epoch.",
        "After a restart, the first epoch has that many batches fewer.",
        {"state": "The elastic state."},
        example=_elastic("UpdateBatchStateCallback"),
    ),
    "UpdateEpochStateCallback": Entry(
        "Callback that keeps `state.epoch` at the number of finished epochs.",
        args={"state": "The elastic state."},
        example=_elastic("UpdateEpochStateCallback"),
    ),
    "BroadcastGlobalVariablesCallback": Entry(
        "Callback that gives all ranks the weights, the optimizer state and the learning rate of one rank.",
        "It does so once, before the first step and after the other callbacks' on_train_begin().",
        {
            "root_rank": "The rank whose values all ranks receive.",
            "device": "Has no effect.",
            "local_variables": "Variables that stay as they are on each rank.",
        },
        example=_callback("BroadcastGlobalVariablesCallback(0)"),
    ),
    "MetricAverageCallback": Entry(
        "Callback that averages the metrics of an epoch over all ranks.",
        "Pass it before callbacks that decide by a metric. All ranks need the same metrics.",
        {"device": "Has no effect."},
        example=_callback("MetricAverageCallback()"),
    ),
    "LearningRateScheduleCallback": Entry(
        "Callback that sets the learning rate to `initial_lr * multiplier(epoch)`.",
        "",
        {
            **_RATE,
            "multiplier": "A function of the epoch. A number m stands for m ** (epoch - start_epoch).",
            "start_epoch": "The first epoch in which it sets the learning rate.",
            "end_epoch": "The first epoch in which it no longer does. By default it never ends.",
            "staircase": "Change the rate at the beginning of an epoch, instead of with each batch.",
        },
        "",
        {"ValueError": "`initial_lr` is None, or the number of batches of an epoch is needed and not known."},
        _callback("LearningRateScheduleCallback(0.1, multiplier=0.5, start_epoch=10)"),
    ),
    "LearningRateWarmupCallback": Entry(
        "Callback that raises the learning rate with each batch, from `initial_lr / hvd.size()` to `initial_lr`.",
        "",
        {
            **_RATE,
            "initial_lr": "The learning rate after the warm-up.",
            "warmup_epochs": "Number of epochs until the rate is `initial_lr`.",
            "verbose": "Print a line when the warm-up has ended.",
        },
        example=_callback("LearningRateWarmupCallback(0.1 * hvd.size(), warmup_epochs=3)"),
    ),
    "BestModelCheckpoint": Entry(
        "ModelCheckpoint of the best model, whose `filepath` is set later.",
        "",
        {
            "monitor": "As in keras.callbacks.ModelCheckpoint.",
            "verbose": "As in keras.callbacks.ModelCheckpoint.",
            "mode": "As in keras.callbacks.ModelCheckpoint.",
            "save_freq": "As in keras.callbacks.ModelCheckpoint.",
        },
        example="checkpoint = hvd.callbacks.BestModelCheckpoint(monitor='loss')\ncheckpoint.filepath = 'best.keras'",
    ),
}
TABLE |= local_sgd.KERAS
