# SPDX-License-Identifier: Apache-2.0
"""Text for the arguments of local SGD and DiLoCo, which several framework APIs have."""

from __future__ import annotations

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
