# SPDX-License-Identifier: Apache-2.0
"""Messages that wait for a copy from the GPU, so that their callers do not."""

from __future__ import annotations

import threading
from collections.abc import Callable

from horovod._engine import EngineError
from horovod.torch.cuda_streams import Event
from horovod.torch.submitter import Submitter

_FAILED = 4  # hvd::Code

# One thread for all groups, in the order of their calls: messages between two ranks match by their order.
_submitter = Submitter()


class Late:
    """A submission to come."""

    def __init__(self, operation: str, arrived: Event, submit: Callable[[], int]) -> None:
        self._operation = operation
        self._arrived = arrived
        self._submit = submit
        self.handles: list[int] = []
        self.failure: EngineError | None = None
        self._there: threading.Event = _submitter.put(self._run)

    def is_there(self, limit_s: float) -> bool:
        return self._there.wait(limit_s)

    def _run(self) -> None:
        """On the submitter's thread: a failure is kept for whoever waits."""
        try:
            self._arrived.synchronize()
            self.handles = [self._submit()]
        except EngineError as error:
            self.failure = error
        except Exception as error:  # whatever CUDA reports late; the waiting thread must hear of it
            text = f"{self._operation}: copying the tensor to the host failed: {error}"
            self.failure = EngineError(_FAILED, text, -1)
