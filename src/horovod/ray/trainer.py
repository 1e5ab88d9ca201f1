# SPDX-License-Identifier: Apache-2.0
"""HorovodTrainer: Ray Train whose workers are Horovod's ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from horovod.common.frameworks import require

require(__name__)

from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer  # noqa: E402

from horovod.ray.train_backend import HorovodConfig  # noqa: E402


class HorovodTrainer(DataParallelTrainer):  # type: ignore[misc]  # Ray tells no types
    """Runs a training loop in the workers of a Ray cluster, each of which is a rank.

    The loop, a function of no argument or of `train_loop_config`, begins with hvd.init(). In it everything works that
    works in other trainers of Ray: ray.train.report with metrics and checkpoints, ray.train.get_dataset_shard for the
    `datasets`, ray.train.get_checkpoint after a failure. `fit()` runs it and returns Ray's Result; a worker that fails or
    dies makes Ray start all of them again from the last checkpoint, `FailureConfig(max_failures=...)` times.
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
        super().__init__(
            train_loop_per_worker=train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=horovod_config or HorovodConfig(),
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            dataset_config=dataset_config,
            **options,
        )
