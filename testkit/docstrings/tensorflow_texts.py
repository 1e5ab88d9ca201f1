# SPDX-License-Identifier: Apache-2.0
"""Texts of the TensorFlow API beside its operations."""

from __future__ import annotations

from testkit.docstrings import shared
from testkit.docstrings.entry import Entry
from testkit.docstrings.tensorflow_operations import DEVICES, OPERATIONS, RAISES
from testkit.docstrings.training import COMPRESSION, COMPRESSOR, OPTIMIZER_ARGUMENTS, RUN

_SCALE = "Divide the gradients of variables that stay on this rank by the number of ranks."
_TAPE = {
    **OPTIMIZER_ARGUMENTS,
    **DEVICES,
    "gradtape": "The tape to wrap, before or after its recording.",
    "groups": "Number of groups in which gradients are reduced, or a list of lists of variables. By default all "
    "gradients are one group.",
    "scale_local_gradients": _SCALE,
    "compression": "hvd.Compression.none, fp16 or bf16, hvd.Compression.int8(), hvd.Compression.powersgd(), or your "
    "own "
    "subclass of hvd.Compressor.",
    "op": "hvd.Average (the default) or another reduce operation.",
}


def _picked(names: str) -> dict[str, str]:
    return {name: _TAPE[name] for name in names.split()}


_COMMON = (
    "device_dense device_sparse compression sparse_as_dense op gradient_predivide_factor num_groups groups "
    "scale_local_gradients"
)
_SESSION = {"session": "Has no effect."}
_OBJECT = shared.TABLE["broadcast_object"]

TABLE = {
    **OPERATIONS,
    "DistributedGradientTape": Entry(
        "Wrap a gradient tape so that gradient() returns gradients reduced over all ranks.",
        "Ranks compare what they reduce. If they differ in variables, shapes, or which gradients are None, all of them "
        "raise an error that names the variables.",
        _picked(f"gradtape {_COMMON}"),
        "A tape of a class derived from that of `gradtape`, with what that has recorded.",
        {"ValueError": "The first argument is not a tape, or other arguments are not valid."},
        "variable = tf.Variable(1.0 + hvd.rank())\n"
        "with hvd.DistributedGradientTape(tf.GradientTape()) as tape:\n"
        "    loss = variable**2\n"
        "float(tape.gradient(loss, variable))  # on 2 ranks: 3.0",
    ),
    "PartialDistributedGradientTape": Entry(
        "Wrap a gradient tape as DistributedGradientTape() does, but leave the gradients of some layers on their rank.",
        "",
        {**_picked(f"gradtape {_COMMON}"), "local_layers": "A Keras layer, or a list of layers."},
        "A tape of a class derived from that of `gradtape`, with what that has recorded.",
        {"ValueError": "The first argument is not a tape, or `local_layers` holds something else than layers."},
        "layer = tf.keras.layers.Dense(1)\n"
        "tape = hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=layer)",
    ),
    "DistributedOptimizer": Entry(
        "Return an optimizer that reduces gradients over all ranks before it applies them.",
        "An optimizer of tf.compat.v1 is wrapped. For an optimizer of Keras, a new one of its class is returned, as by "
        "horovod.tensorflow.keras.",
        {
            **_picked(_COMMON),
            "optimizer": "An optimizer of Keras or of tf.compat.v1.train.",
            "name": "Name of the optimizer, which ranks also match.",
            "use_locking": "As in tf.compat.v1.train.Optimizer. It has no effect on Keras's optimizers.",
            "backward_passes_per_step": OPTIMIZER_ARGUMENTS["backward_passes_per_step"],
            "average_aggregated_gradients": "Divide accumulated gradients by backward_passes_per_step.",
            "op": "hvd.Average (the default) or hvd.Sum; for tf.compat.v1 also hvd.Adasum.",
        },
        "The distributed optimizer.",
        {
            "ValueError": "The first argument is no optimizer, or arguments do not fit together.",
            "NotImplementedError": "op is hvd.Adasum, and `process_set` is not the set of all ranks.",
        },
        "optimizer = tf.keras.optimizers.SGD(0.1 * hvd.size())\noptimizer = hvd.DistributedOptimizer(optimizer)",
    ),
    "LocalGradientAggregationHelper": Entry(
        "Accumulation of gradients over several backward passes, for optimizers in graphs.",
        "hvd.DistributedOptimizer(backward_passes_per_step=...) uses it; programs rarely need it.",
        {
            "backward_passes_per_step": OPTIMIZER_ARGUMENTS["backward_passes_per_step"],
            "allreduce_func": "Function of the gradients and the variables, which returns the reduced gradients.",
            "sparse_as_dense": OPTIMIZER_ARGUMENTS["sparse_as_dense"],
            "average_aggregated_gradients": "Divide accumulated gradients by backward_passes_per_step.",
            "rank": "Has no effect.",
            "optimizer_type": "Has no effect.",
            "scale_local_gradients": _SCALE,
            "name": "Part of the names of its variables.",
        },
        "",
        {"ValueError": "backward_passes_per_step is below 1."},
        "reduce = lambda gradients, variables: gradients\n"
        "helper = hvd.LocalGradientAggregationHelper(2, reduce, False, False, hvd.rank(), 'legacy_optimizer')",
    ),
    "SyncBatchNormalization": Entry(
        "Layer like tf.keras.layers.BatchNormalization, whose training statistics cover the batches of all ranks.",
        "Every sample counts alike, also if ranks have batches of different sizes.",
        {
            "fused": "Must be False.",
            "kwargs": "Arguments of tf.keras.layers.BatchNormalization, and `process_set`, the ranks whose batches "
            "count, which is not part of the layer's config.",
        },
        "",
        {"ValueError": "`fused` is not False."},
        "layer = hvd.SyncBatchNormalization()\nlayer(tf.ones([4, 3]), training=True).shape.rank  # on 2 ranks: 2",
    ),
    "broadcast_variables": Entry(
        "Overwrite variables with those of one rank, as one unit.",
        "Call it after the model and the optimizer have their variables, so that all ranks begin with the same ones.",
        {
            "variables": "Variables in a list, a tree, or a function that returns them.",
            "inplace": "Has no effect.",
        },
        "In a graph, the operation to run. Eagerly, the variables have changed when the function returns.",
        RAISES,
        "variable = tf.Variable([1.0 + hvd.rank()])\n"
        "hvd.broadcast_variables([variable], root_rank=0)  # the variable is now [1.0] on all ranks",
    ),
    "broadcast_global_variables": Entry(
        "Return an operation that overwrites all global variables of a graph with those of one rank.",
        returns="The operation. Run it once in a session, after the initialization.",
        raises={"RuntimeError": "TensorFlow executes eagerly. Use hvd.broadcast_variables() instead."},
        example="with tf.Graph().as_default():\n    start = hvd.broadcast_global_variables(root_rank=0)",
    ),
    "BroadcastGlobalVariablesHook": Entry(
        "Hook for sessions of tf.compat.v1 that broadcasts all global variables once they are initialized or restored.",
        "Pass it to the session on every rank.",
        {"device": "Device for the broadcast. By default TensorFlow chooses."},
        example="hooks = [hvd.BroadcastGlobalVariablesHook(root_rank=0)]\n"
        "len(hooks)  # for tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks)",
    ),
    "broadcast_object": _OBJECT.but(**_SESSION),
    "broadcast_object_fn": Entry(
        "Return a function that sends one rank's Python object to all ranks.",
        args={"name": _OBJECT.args["name"], **_SESSION},
        returns="A function of one object, which returns the root's object. It may be called many times.",
        example="send = hvd.broadcast_object_fn(root_rank=0)\nsend(hvd.rank())  # on 2 ranks: 0",
    ),
    "allgather_object": shared.TABLE["allgather_object"].but(**_SESSION),
    "check_num_rank_power_of_2": Entry(
        "Return True if a number of ranks is a power of two.",
        args={"num_rank": "The number."},
        returns="True for 1, 2, 4, 8 and so on.",
        example="hvd.check_num_rank_power_of_2(hvd.size())  # on 2 ranks: True",
    ),
    "gpu_available": Entry(
        "Return False, for programs written for Horovod.",
        args={"ext_base_name": "Has no effect."},
        returns="False.",
        example="hvd.gpu_available('tensorflow')  # on 2 ranks: False",
    ),
    "handle_average_backwards_compatibility": Entry(
        "Return the reduce operation that a call asks for, the deprecated argument `average` included.",
        args={
            "op": "The operation, or None.",
            "average": "True means hvd.Average, False means hvd.Sum. None if the caller does not use it.",
            "stacklevel": "As in warnings.warn(), for the warning that `average` is deprecated.",
        },
        returns="The operation. hvd.Average if both arguments are None.",
        raises={"ValueError": "Both arguments are given."},
        example="op = hvd.handle_average_backwards_compatibility(hvd.Sum, None)\nop == hvd.Sum  # on 2 ranks: True",
    ),
    "vars_to_refs": Entry(
        "Return keys for variables, which compare element by element and so cannot be keys themselves.",
        args={"vars": "A variable, or nested lists of variables."},
        returns="A key, or nested tuples of keys.",
        example="keys = {hvd.vars_to_refs(tf.Variable(1.0)): 'first'}\nlen(keys)  # on 2 ranks: 1",
    ),
    "refs_to_vars": Entry(
        "Return the variables of keys that vars_to_refs() made.",
        args={"refs": "A key, or nested tuples of keys."},
        returns="A variable, or nested lists of variables.",
        example="variable = tf.Variable(1.0)\nhvd.refs_to_vars(hvd.vars_to_refs(variable)) is variable  # on 2 ranks: "
        "True",
    ),
    "Compression": COMPRESSION.but(
        about="`none`, `fp16` and `bf16` are classes that every function with `compression` accepts. `int8()` and "
        "`powersgd()` are methods for optimizers and tapes; allreduce() and grouped_allreduce() also accept `int8()`. "
        "By "
        "default they compress only what leaves a host. The other methods are refused.",
    ),
    "Compressor": COMPRESSOR,
    "TensorFlowState": Entry(
        "State of your own training loop, for hvd.elastic.run(): variables and Python values.",
        "commit() saves all of it; restore() writes what was saved; sync() gives all ranks the variables of rank 0, "
        "and "
        "the values that rank 0 saved last.",
        {
            "variables": "List of variables. In graphs, by default all global variables.",
            "session": "The session, for graphs of tf.compat.v1.",
            "kwargs": "Any Python values, each in the attribute of its name.",
        },
        "",
        {"ValueError": "`variables` is missing, and TensorFlow executes eagerly."},
        "state = hvd.elastic.TensorFlowState([tf.Variable(4.0)], step=0)\nstate.step += 1",
    ),
    "TensorFlowKerasState": Entry(
        "State of a training with a Keras model, for hvd.elastic.run(): model, optimizer and Python values.",
        "commit() saves all of it; restore() writes what was saved; sync() gives all ranks the variables of rank 0, "
        "and "
        "the values that rank 0 saved last.",
        {
            "model": "The model. It must be built, so that it has weights.",
            "optimizer": "The optimizer. By default that of the model.",
            "backend": "keras.backend, for graphs of tf.compat.v1.",
            "kwargs": "Any Python values, each in the attribute of its name.",
        },
        "",
        {"ValueError": "The model is not built."},
        "model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])\n"
        "state = hvd.elastic.TensorFlowKerasState(model, epoch=0)",
    ),
    "run": RUN.but(
        example="train = hvd.elastic.run(lambda state: state.step + 1)\n"
        "train(hvd.elastic.TensorFlowState([tf.Variable(4.0)], step=0))  # on 2 ranks: 1"
    ),
}
