# SPDX-License-Identifier: Apache-2.0
"""Logging from workers: `ray_logger.log(dict)` calls the callbacks of the executor's run()."""

from __future__ import annotations

from typing import Any

from horovod.common.log import logger

_queue: Any = None
warning_raised = False


def configure(queue: Any) -> None:
    """Set the queue in a worker before it runs the user's function. None ends the logging."""
    global _queue
    _queue = queue


def log(info_dict: dict[str, Any]) -> None:
    """Pass values to the callbacks, in the process that called run()."""
    global warning_raised
    if _queue is not None:
        _queue.put(info_dict)
    elif not warning_raised:
        warning_raised = True
        logger.warning("ray_logger.log has no effect here: pass callbacks=[...] to the executor's run()")
