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
    """Trainer of Ray Train whose workers are ranks.

    The loop begins with hvd.init(). In it ray.train.report(), ray.train.get_dataset_shard() and
    ray.train.get_checkpoint() work as in other trainers of Ray. fit() runs it and returns Ray's Result, whose `metrics`
    are rank 0's last report. If a worker fails, Ray starts all of them again from the last checkpoint,
    `FailureConfig(max_failures=...)` times.

    Args:
        train_loop_per_worker: The training loop, a function of no argument or of `train_loop_config`.
        train_loop_config: Argument of the training loop.
        horovod_config: How the workers meet, as HorovodConfig.
        scaling_config: Ray's ScalingConfig. With num_workers=(fewest, most) the number of workers may change after a
            failure.
        run_config: Ray's RunConfig.
        datasets: Data sets of Ray, by name.
        dataset_config: Ray's DataConfig.
        **options: Other arguments of Ray's DataParallelTrainer.

    Example:
        >>> trainer = HorovodTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=2))
        >>> result = trainer.fit()
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
        """Create the trainer. `options` are further arguments of Ray's DataParallelTrainer."""
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
        """Train.

        Returns:
            Ray's Result.

        Raises:
            NotEnoughResourcesError: The cluster is too small for the workers, and no nodes joined within
                `placement_group_timeout_s`. Ray itself would wait without a limit.
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
