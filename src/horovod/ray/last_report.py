# SPDX-License-Identifier: Apache-2.0
"""Last report of a Ray Train run. Ray's own Result contains only the last report that came with a checkpoint."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from ray import cloudpickle
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put
from ray.train.v2._internal.execution.callback import ControllerCallback, ReportCallback

_NAMESPACE = b"horovod"


class LastReport(ReportCallback, ControllerCallback):  # type: ignore[misc]  # Ray tells no types
    """Callback of Ray Train's controller, which is a separate process. The process that calls fit() calls `take()`.

    The report travels through Ray's key-value store, because an actor would be one more process per run.
    """

    def __init__(self) -> None:
        self._key = f"last-report-{uuid4().hex}".encode()
        self._metrics: dict[str, Any] | None = None

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        """Remember rank 0's metrics.

        Ray itself keeps the metrics of a checkpoint, and adds validation results to them.
        """
        self._metrics = metrics[0] if training_report.checkpoint is None else None

    def after_controller_finish(self, result: Any) -> None:
        """Publish the metrics of a run that succeeded. After any other run fit() raises."""
        if self._metrics is not None and result.error is None:
            _internal_kv_put(self._key, cloudpickle.dumps(self._metrics), overwrite=True, namespace=_NAMESPACE)

    def take(self) -> dict[str, Any] | None:
        """Return the metrics of the last report and delete them.

        Return None if there is no report or if it came with a checkpoint.
        """
        packed = _internal_kv_get(self._key, namespace=_NAMESPACE)
        if packed is None:
            return None
        _internal_kv_del(self._key, namespace=_NAMESPACE)
        metrics: dict[str, Any] = cloudpickle.loads(packed)
        return metrics
