# SPDX-License-Identifier: Apache-2.0
"""Context of the training loop in a worker of Ray Train."""

from __future__ import annotations

from types import TracebackType

import ray.train

from horovod.ray import metrics
from horovod.ray.joining import leave_world


class Training:
    """Context around the training loop: it publishes metrics, and leaves the world when the loop has ended normally."""

    def __enter__(self) -> Training:
        metrics.publish_for(ray.train.get_context().get_experiment_name())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error this rank stays in the world, and Ray ends the group. If it left, the other ranks would fail
        # too, and the user would have to find out which failure was the first.
        if error is None:
            leave_world()
