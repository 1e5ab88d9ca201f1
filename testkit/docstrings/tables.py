# SPDX-License-Identifier: Apache-2.0
"""The table: the modules whose names have docstrings here, and the texts of each framework."""

from __future__ import annotations

from testkit.docstrings import (
    jax_texts,
    keras_texts,
    mxnet_texts,
    numpy_texts,
    other_texts,
    shared,
    tensorflow_texts,
    torch_texts,
)
from testkit.docstrings.arguments import ARGUMENTS as ARGUMENTS
from testkit.docstrings.entry import Entry
from testkit.docstrings.method_texts import METHODS as METHODS

# Modules with a public __all__, and the texts and words of each.
MODULES = {
    "horovod": "horovod",
    "horovod.common.door": "shared",
    "horovod.torch": "torch",
    "horovod.torch.elastic": "torch",
    "horovod.tensorflow": "tensorflow",
    "horovod.tensorflow.elastic": "tensorflow",
    "horovod.keras": "keras",
    "horovod.keras.callbacks": "keras",
    "horovod.keras.elastic": "keras",
    "horovod.tensorflow.keras": "keras",
    "horovod.tensorflow.keras.callbacks": "keras",
    "horovod.tensorflow.keras.elastic": "keras",
    "horovod.jax": "jax",
    "horovod.jax.elastic": "jax",
    "horovod.mxnet": "mxnet",
    "horovod.numpy": "numpy",
    "horovod.numpy.elastic": "numpy",
    "horovod.data": "data",
    "horovod.ray": "ray",
}
_CALLBACKS = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
# Public names of modules without an __all__.
NAMES = {
    "horovod.keras.callbacks": [*_CALLBACKS, "DiLoCoCallback", "LocalSGDCallback"],
    "horovod.tensorflow.keras.callbacks": _CALLBACKS,
}

# Public names that a function makes, by the module and path of the definition.
_FACTORIES = "horovod._keras.shared_functions"
INNER: dict[tuple[str, str], tuple[str, str]] = {
    (module, name): (_FACTORIES, f"{factory}.{name}")
    for module in ("horovod.keras", "horovod.tensorflow.keras")
    for name, factory in (
        ("PartialDistributedOptimizer", "partial_optimizer_for"),
        ("load_model", "load_model_for"),
    )
}

# By framework and public name. A name without an entry in its framework has that of "shared".
TABLES: dict[str, dict[str, Entry]] = {
    "shared": shared.TABLE,
    "torch": torch_texts.TABLE,
    "tensorflow": tensorflow_texts.TABLE,
    "keras": keras_texts.TABLE,
    "jax": jax_texts.TABLE,
    "mxnet": mxnet_texts.TABLE,
    "numpy": numpy_texts.TABLE,
    "horovod": other_texts.HOROVOD,
    "data": other_texts.DATA,
    "ray": other_texts.RAY,
}

# Public methods that only a framework or the package itself calls.
NOT_FOR_PROGRAMS = {
    *("after_create_session", "begin", "call", "forward", "on_batch_begin", "on_batch_end", "on_epoch_begin"),
    *(
        "on_epoch_end",
        "on_train_begin",
        "on_train_batch_begin",
        "on_train_batch_end",
        "create_state",
        "create_state_multi_precision",
        "update",
    ),
    *("update_multi_precision", "set_learning_rate", "set_lr_mult", "set_wd_mult", "apply_gradients"),
    *("compute_gradients", "backend_cls", "train_func_context", "bind", "invalidate"),
}
INTERNAL_CLASSES = {"BaseHorovodWorker", "CommitStateCallbackImpl"}
