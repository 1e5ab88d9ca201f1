# SPDX-License-Identifier: Apache-2.0
"""Texts of local SGD and DiLoCo: arguments that several framework APIs have, and the entries of JAX and Keras."""

from __future__ import annotations

from testkit.docstrings.entry import Entry

LOCAL_SGD_ARGUMENTS = {
    "outer": "Rule by which the global weights follow the workers' average: a dict or an optimizer such as "
    "torch.optim.SGD with lr, momentum and nesterov. By default lr=0.7, momentum=0.9 and nesterov=True.",
    "every": "Number of inner steps after which each fragment is exchanged. Give this or `every_seconds`.",
    "every_seconds": "Number of seconds after which each fragment is exchanged. Workers are weighted by the steps that "
    "they made.",
    "fragments": "Number of parts of the model that are exchanged one after the other.",
    "delay": "Number of inner steps that a worker makes during an exchange, before it merges the result.",
    "merge": "Share of the worker's own weights when it merges, at least 0 and below 1.",
    "wire": "Format of values on the wire: 'fp32', 'bf16', 'int8' or 'int4'.",
    "across": "'ranks' if each rank is a worker, or 'hosts' if the ranks of a host train synchronously as one worker.",
    "deadline_s": "Seconds after the first worker is ready at which an exchange begins without the late workers.",
}
_DILOCO = {name: text for name, text in LOCAL_SGD_ARGUMENTS.items() if name != "across"}  # across is torch's alone
_LOCAL = {name: text for name, text in _DILOCO.items() if name != "outer"}
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
        {**_PARAMS, **_DILOCO},
        raises=_WRONG,
        example="params = {'w': jnp.full(2, hvd.rank(), 'float32')}\n"
        "diloco = hvd.DiLoCo(params, every=50)\n"
        "params = diloco.begin(params)\n"
        "params['w'].tolist()  # on 2 ranks: [0.0, 0.0]",
    ),
    "LocalSGD": Entry(
        "Object that lets each rank train alone and averages the weights in rounds.",
        _CALLS.replace("diloco.", "averaging."),
        {**_PARAMS, **_LOCAL},
        raises=_WRONG,
        example="params = {'w': jnp.full(2, hvd.rank(), 'float32')}\n"
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
        _DILOCO,
        raises=_WRONG,
        example="callback = hvd.callbacks.DiLoCoCallback(every=50)\n"
        "callbacks = [callback]  # for model.fit(..., callbacks=callbacks)",
    ),
    "LocalSGDCallback": Entry(
        "Callback that lets each rank train alone and averages the weights in rounds.",
        _KERAS,
        _LOCAL,
        raises=_WRONG,
        example="callback = hvd.callbacks.LocalSGDCallback(every=50)\n"
        "callbacks = [callback]  # for model.fit(..., callbacks=callbacks)",
    ),
}
