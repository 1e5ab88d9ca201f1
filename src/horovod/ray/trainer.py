# SPDX-License-Identifier: Apache-2.0
"""HorovodTrainer: Ray Train with Horovod's ranks as its workers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import ray
import ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from horovod.ray.capacity import await_room
from horovod.ray.last_report import LastReport
from horovod.ray.train_backend import HorovodConfig


class HorovodTrainer(DataParallelTrainer):  # type: ignore[misc]  # Ray tells no types
    """Runs a training loop in the workers of a Ray cluster, each of which is a rank.

    The loop, a function of no argument or of `train_loop_config`, begins with hvd.init(). In it everything works that
    works in other trainers of Ray: ray.train.report with metrics and checkpoints, ray.train.get_dataset_shard for the
    `datasets`, ray.train.get_checkpoint after a failure. `fit()` runs it and returns Ray's Result, whose `metrics`
    are rank 0's last report, with or without a checkpoint. A worker that fails or dies makes Ray start all of them
    again from the last checkpoint, `FailureConfig(max_failures=...)` times.
    With `ScalingConfig(num_workers=(least, most))` the new workers may be fewer, or more.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        horovod_config: HorovodConfig | None = None,
        scaling_config: Any = None,
        run_config: Any = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: Any = None,
        **options: Any,
    ) -> None:
        """`options`: what Ray's DataParallelTrainer takes beside these."""
        self._last_report = LastReport()
        super().__init__(
            train_loop_per_worker=train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=horovod_config or HorovodConfig(),
            scaling_config=scaling_config,
            run_config=_with_callback(run_config or ray.train.RunConfig(), self._last_report),
            datasets=datasets,
            dataset_config=dataset_config,
            **options,
        )

    def fit(self) -> Any:
        """Train, and return Ray's Result.

        NotEnoughResourcesError if the cluster is too small for the workers, and nodes that could hold them do not join
        within the `placement_group_timeout_s` of HorovodConfig: Ray itself would wait for them without a limit.
        """
        if self.running_in_local_mode:
            return super().fit()
        if not ray.is_initialized():
            ray.init()
        scaling = self.scaling_config
        await_room(
            _resources_of_a_worker(scaling), _fewest_workers(scaling), self.backend_config.placement_group_timeout_s
        )
        result = super().fit()
        metrics = self._last_report.take()
        if metrics is not None:
            result.metrics = metrics
        return result


def _with_callback(config: Any, callback: Any) -> Any:
    """Return a copy of a RunConfig with one more callback."""
    copied = copy.copy(config)
    copied.callbacks = [*(config.callbacks or ()), callback]
    return copied


def _fewest_workers(scaling: Any) -> int:
    return min(scaling.num_workers) if isinstance(scaling.num_workers, tuple) else int(scaling.num_workers)


def _resources_of_a_worker(scaling: Any) -> dict[str, float]:
    """Return the resources of a worker as Ray Train counts them: by default a CPU, and a GPU where GPUs are used."""
    resources = {name: amount for name, amount in (scaling.resources_per_worker or {}).items() if amount}
    if scaling.use_gpu:
        resources.setdefault("GPU", 1)
    return resources or {"CPU": 1}
