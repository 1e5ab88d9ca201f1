# SPDX-License-Identifier: Apache-2.0
"""Texts of the JAX API, whose functions accept trees of arrays."""

from __future__ import annotations

from dataclasses import replace

from testkit.docstrings import local_sgd, operations
from testkit.docstrings.entry import Entry
from testkit.docstrings.training import COMPRESSION, COMPRESSOR, OPTIMIZER_ARGUMENTS, RUN

_INT8 = (
    "hvd.Compression.none, fp16 or bf16 (the type in which floating-point values are sent), hvd.Compression.int8() "
    "(what leaves a host travels as 8-bit numbers; op must be Average or Sum), or your own subclass of hvd.Compressor."
)
_INSIDE = (
    "Inside jit the operation becomes part of the program. Within hvd.translated_errors() the compiled program raises "
    "the errors below, too."
)
_TREE = "An array, or a tree of arrays that is sent as one unit. It does not change."
_TREES = "List of arrays or of trees of arrays. They do not change."
_LOST = "A rank failed or left the job."
_METHOD = (
    "hvd.Compression.none, fp16 or bf16, a method with arguments such as hvd.Compression.int8(), or your own subclass "
    "of "
    "hvd.Compressor."
)


def _on_trees(name: str, entry: Entry) -> Entry:
    """Return the text with trees among the arguments."""
    which = {"tensors": _TREES} if name.startswith("grouped") else {"tensor": _TREE}
    about = entry.about if name.endswith("async") else f"{entry.about} {_INSIDE}".strip()
    return replace(entry, about=about, args={**entry.args, **which})


_ROWS = "Arrays may differ between ranks in their first dimension, but not inside jit."
_OPTIMIZER_STATE = "It contains what compression has lost so far, if `compression` is a method with arguments."

TABLE = {
    **{name: _on_trees(name, entry) for name, entry in operations.BLOCKING.items()},
    **{
        name: _on_trees(name, entry) if name not in ("poll", "synchronize") else entry
        for name, entry in operations.ASYNCHRONOUS.items()
    },
    **operations.MEETINGS,
    "allreduce": _on_trees("allreduce", operations.ALLREDUCE).but(compression=_INT8),
    "grouped_allreduce": _on_trees("grouped_allreduce", operations.GROUPED_ALLREDUCE).but(compression=_INT8),
    "allgather": _on_trees("allgather", operations.ALLGATHER).but(tensor=f"An array, or a tree of arrays. {_ROWS}"),
    "grouped_allgather": _on_trees("grouped_allgather", operations.GROUPED_ALLGATHER).but(
        tensors=f"List of arrays or of trees of arrays. {_ROWS}"
    ),
    "alltoall": operations.ALLTOALL.but(
        about=_INSIDE,
        splits="Number of rows for each rank, as a list or an array of integers. Rows beyond their sum are not sent. "
        "By "
        "default all ranks get an equal share. Inside jit it must be None.",
    ),
    "alltoall_async": operations.ALLTOALL_ASYNC,
    "broadcast_parameters": Entry(
        "Return a tree with the values of one rank.",
        "Arrays are immutable, so use what the function returns. Leaves that are neither arrays nor PRNG keys nor "
        "numbers stay as they are.",
        {
            "params": "A tree, for example of a model's parameters.",
            "name": "Name under which the ranks match this call.",
        },
        "A tree of the same structure.",
        {"HorovodMismatchError": "The trees of the ranks differ.", "HorovodInternalError": _LOST},
        "params = hvd.broadcast_parameters({'w': jnp.zeros(2) + hvd.rank()}, root_rank=1)\n"
        "params['w'].tolist()  # on 2 ranks: [1.0, 1.0]",
    ),
    "broadcast_optimizer_state": Entry(
        "Return the state of an optimizer with the values of one rank.",
        "Arrays are immutable, so use what the function returns. What compression keeps for one rank is not sent.",
        {
            "optimizer_state": "What the optimizer's init() or update() returned.",
            "name": "Name under which the ranks match this call.",
        },
        "A tree of the same structure.",
        {"HorovodMismatchError": "The states of the ranks differ.", "HorovodInternalError": _LOST},
        "state = optax.adam(0.1).init(jnp.zeros(2))\nstate = hvd.broadcast_optimizer_state(state)",
    ),
    "fold_in_rank": Entry(
        "Return a PRNG key of this rank's own, for dropout and other values that must differ between ranks.",
        args={"key": "A key that is equal on all ranks."},
        returns="The key of this rank.",
        raises={"HorovodNotInitializedError": "Call hvd.init() first."},
        example="key = hvd.fold_in_rank(jax.random.PRNGKey(0))\njax.random.normal(key, (2,)).shape  # on 2 ranks: (2,)",
    ),
    "translated_errors": Entry(
        "Return a context in which collectives inside jit raise the errors that they raise outside.",
        "JAX itself raises JaxRuntimeError or ValueError for them, depending on its version and on the call.",
        returns="A context manager.",
        raises={
            "HorovodInternalError": "Inside the block, as a rank failed or left the job.",
            "HorovodMismatchError": "Inside the block, as the ranks disagree.",
        },
        example="with hvd.translated_errors():\n    jax.jit(hvd.allreduce)(jnp.ones(2)).block_until_ready()",
    ),
    "DistributedOptimizer": Entry(
        "Return an optax transformation that reduces gradients over all ranks, then updates as `optimizer` does.",
        "Put it outside of optax wrappers that look at gradients.",
        {
            "optimizer": "An optax GradientTransformation.",
            "compression": _METHOD,
            "backward_passes_per_step": "Number of calls whose gradients are accumulated before they are reduced. The "
            "calls in between return zero updates.",
            "op": "hvd.Average (the default), hvd.Sum, hvd.Min, hvd.Max, hvd.Product or hvd.Adasum.",
            "gradient_predivide_factor": OPTIMIZER_ARGUMENTS["gradient_predivide_factor"],
            "average_aggregated_gradients": "Divide accumulated gradients by backward_passes_per_step.",
        },
        f"An optax GradientTransformation. Its state is a tree. {_OPTIMIZER_STATE}",
        {"ValueError": "Arguments are not valid or do not fit together."},
        "optimizer = hvd.DistributedOptimizer(optax.adam(0.001 * hvd.size()))\nstate = optimizer.init(jnp.zeros(2))",
    ),
    "value_and_grad": Entry(
        "Return a function like jax.value_and_grad(fun), whose gradients are reduced over all ranks.",
        "The value is this rank's own.",
        {
            "fun": "The function.",
            "argnums": "As in jax.value_and_grad().",
            "has_aux": "As in jax.value_and_grad().",
            "compression": _INT8,
            "options": "Other arguments of jax.value_and_grad().",
        },
        "A function with the arguments of `fun`, which returns the value and the reduced gradients.",
        example="value, gradient = hvd.value_and_grad(lambda x: x * hvd.rank())(1.0)\n"
        "float(gradient)  # on 2 ranks: 0.5",
    ),
    "grad": Entry(
        "Return a function like jax.grad(fun), whose gradients are reduced over all ranks.",
        "",
        {
            "fun": "The function.",
            "argnums": "As in jax.grad().",
            "has_aux": "As in jax.grad().",
            "options": "Other arguments of hvd.value_and_grad() and of jax.grad().",
        },
        "A function with the arguments of `fun`, which returns the reduced gradients.",
        example="gradient = hvd.grad(lambda x: x * hvd.rank())(1.0)\nfloat(gradient)  # on 2 ranks: 0.5",
    ),
    "OneBitAdam": Entry(
        "Return a distributed Adam that compresses to one bit what leaves a host, once its variance has settled.",
        "It is an optax GradientTransformation that begins as AdamW with dense gradients. When the variance has "
        "settled "
        "it is frozen, and ranks exchange the momentum as hvd.Compression.onebit() does. A step in which a gradient is "
        "not finite on some rank is left out on all ranks. Do not wrap it with hvd.DistributedOptimizer().",
        {
            "learning_rate": "A number, or a schedule of the number of steps so far.",
            "b1": "Decay of the momentum.",
            "b2": "Decay of the variance.",
            "eps": "Number that is added to the root of the variance.",
            "weight_decay": "Decoupled weight decay.",
            "lr_warmup_steps": "Do not freeze the variance in this many first steps, in which the learning rate still "
            "rises.",
            "freeze_after": "Freeze the variance after this many steps. By default the variance decides. Its norm, "
            "compared with that of 1 / (1 - b2) steps before, has to be at least 0.96.",
            "backward_passes_per_step": "Number of calls whose gradients are accumulated for a step.",
            "average_aggregated_gradients": "Divide accumulated gradients by backward_passes_per_step.",
            "compression": "Arguments of hvd.Compression.onebit(), namely scope, exclude, min_bytes and "
            "error_feedback.",
        },
        "An optax GradientTransformation.",
        {"ValueError": "An argument is not valid."},
        "optimizer = hvd.OneBitAdam(0.001)\nstate = optimizer.init(jnp.zeros(2))",
    ),
    "Compression": COMPRESSION.but(
        about=COMPRESSION.about + " Of the methods, allreduce() and grouped_allreduce() accept `int8()` only.",
    ),
    "Compressor": COMPRESSOR,
    "JaxState": Entry(
        "State of a training with JAX, for hvd.elastic.run().",
        "Every keyword becomes an attribute. Assign new values to the attributes, then commit() saves them. sync() "
        "gives "
        "all ranks what rank 0 saved last.",
        {"kwargs": "Trees of arrays, such as parameters and optimizer states, or any Python values."},
        example="state = hvd.elastic.JaxState(params=jnp.zeros(2), step=0)\nstate.step += 1",
    ),
    "run": RUN.but(
        example="train = hvd.elastic.run(lambda state: state.step + 1)\n"
        "train(hvd.elastic.JaxState(step=0))  # on 2 ranks: 1"
    ),
}
TABLE |= local_sgd.JAX
