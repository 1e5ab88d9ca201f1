# SPDX-License-Identifier: Apache-2.0
"""Transfer of what workers pass to ray_logger.log() to the callbacks of run(), in the process that called run()."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horovod.ray.discovery import head_node


class Callbacks:
    """Callbacks of one run. `queue` goes to the workers; call `serve()` while they run.

    Without callbacks there is no queue.
    """

    def __init__(self, callbacks: Sequence[Callable[..., Any]] | None) -> None:
        self._callbacks = list(callbacks or ())
        self.queue = Queue(actor_options=_queue_options()) if self._callbacks else None

    def __enter__(self) -> Callbacks:
        return self

    def __exit__(self, *_: object) -> None:
        if self.queue is not None:
            self.queue.shutdown(force=True)

    def serve(self) -> None:
        """Call each callback with everything that was logged since the last call."""
        waiting = self.queue.qsize() if self.queue is not None else 0
        for info in self.queue.get_nowait_batch(waiting) if self.queue is not None and waiting else ():
            for callback in self._callbacks:
                callback(info)


def _queue_options() -> dict[str, Any]:
    """Return options that place the queue on the head node, because any other node may be taken away."""
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=head_node(), soft=False)}
