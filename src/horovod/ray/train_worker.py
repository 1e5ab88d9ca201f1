# SPDX-License-Identifier: Apache-2.0
"""What surrounds the training loop in a worker of Ray Train."""

from __future__ import annotations

from types import TracebackType

import ray.train

from horovod.ray import metrics
from horovod.ray.joining import leave_world


class Training:
    """Around the loop: metrics while it runs, and an orderly farewell to the other ranks at its end."""

    def __enter__(self) -> Training:
        metrics.publish_for(ray.train.get_context().get_experiment_name())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error this rank stays where it is, and Ray ends the group: if it left, the others would fail of it
        # too, and the user would have to find out which failure was the first.
        if error is None:
            leave_world()
