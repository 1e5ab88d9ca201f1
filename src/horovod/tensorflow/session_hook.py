# SPDX-License-Identifier: Apache-2.0
"""Hook for sessions of tf.compat.v1 that gives all ranks equal variables at the start."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.tensorflow.functions import broadcast_global_variables
from horovod.tensorflow.util import on_device


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Hook for sessions of tf.compat.v1 that broadcasts all global variables once they are initialized or restored.

    Pass it to the session on every rank.

    Args:
        root_rank: The rank that sends its values, counted among all ranks of the job.
        device: Device for the broadcast. By default TensorFlow chooses.

    Example:
        >>> hooks = [hvd.BroadcastGlobalVariablesHook(root_rank=0)]
        >>> len(hooks)  # for tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks)
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            with on_device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self.bcast_op)
