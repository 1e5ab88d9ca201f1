# SPDX-License-Identifier: Apache-2.0
"""Texts of local SGD and DiLoCo, which JAX and Keras share."""

from __future__ import annotations

from testkit.docstrings.entry import Entry

OUTER = {
    "outer": "Rule by which the global weights follow the workers' average: a dict of lr, momentum and nesterov. By "
    "default Nesterov momentum 0.9 with the rate 0.7.",
}
ROUNDS = {
    "every": "Number of steps after which each fragment is exchanged. Give either this or every_seconds.",
    "every_seconds": "Number of seconds after which each fragment is exchanged. Workers count by the steps they made.",
    "fragments": "Number of parts of the model that are exchanged one after the other.",
    "delay": "Number of steps that a worker goes on with before it merges the result of an exchange.",
    "merge": "Share of the worker's own weights in a merge, from 0 (take the global weights) to below 1.",
    "wire": "Format in which values are sent, namely fp32, bf16, int8 or int4.",
    "deadline_s": "Seconds after the first worker is ready at which a round begins without the late workers.",
}
_WRONG = {"ValueError": "An argument is not valid, or a weight has a dtype that cannot be averaged."}
_PARAMS = {"params": "Tree of float32, bfloat16 or float16 parameters. Only their names and shapes are kept."}
_CALLS = (
    "Call `params = diloco.begin(params)` before the first step, `params = diloco.step(params)` after each jitted "
    "step, and `params = diloco.finish(params)` at the end. Each rank keeps its own optimizer state. Save "
    "state_dict() beside the parameters. After an elastic reset call sync(params)."
)
JAX = {
    "DiLoCo": Entry(
        "Object that lets each rank train alone and exchanges weights in rounds, with an outer Nesterov step.",
        _CALLS,
        {**_PARAMS, **OUTER, **ROUNDS},
        raises=_WRONG,
        example="params = {'w': jnp.zeros(2) + hvd.rank()}\n"
        "diloco = hvd.DiLoCo(params, every=50)\n"
        "params = diloco.begin(params)\n"
        "params['w'].tolist()  # on 2 ranks: [0.0, 0.0]",
    ),
    "LocalSGD": Entry(
        "Object that lets each rank train alone and averages the weights in rounds.",
        _CALLS.replace("diloco.", "averaging."),
        {**_PARAMS, **ROUNDS},
        raises=_WRONG,
        example="params = {'w': jnp.zeros(2) + hvd.rank()}\n"
        "averaging = hvd.LocalSGD(params, every=1)\n"
        "params = averaging.begin(params)\n"
        "params = averaging.finish(averaging.step({'w': params['w'] + 2.0 * hvd.rank()}))\n"
        "params['w'].tolist()  # on 2 ranks: [1.0, 1.0]",
    ),
}
_KERAS = (
    "Compile the model with the optimizer itself, not with hvd.DistributedOptimizer. Only trainable weights are "
    "exchanged. steps_per_execution must divide `every`. Save state_dict() beside the model."
)
KERAS = {
    "DiLoCoCallback": Entry(
        "Callback that lets each rank train alone and exchanges weights in rounds, with an outer Nesterov step.",
        _KERAS,
        {**OUTER, **ROUNDS},
        raises=_WRONG,
        example="callback = hvd.callbacks.DiLoCoCallback(every=50)\n"
        "callbacks = [callback]  # for model.fit(..., callbacks=callbacks)",
    ),
    "LocalSGDCallback": Entry(
        "Callback that lets each rank train alone and averages the weights in rounds.",
        _KERAS,
        ROUNDS,
        raises=_WRONG,
        example="callback = hvd.callbacks.LocalSGDCallback(every=50)\n"
        "callbacks = [callback]  # for model.fit(..., callbacks=callbacks)",
    ),
}
