# SPDX-License-Identifier: Apache-2.0
"""Horovod on Ray: executors whose workers are actors, and a trainer for Ray Train."""

from typing import TYPE_CHECKING

from horovod.common.frameworks import require

require(__name__)

from horovod.common.lazily import lazily
from horovod.ray.elastic import ElasticRayExecutor as ElasticRayExecutor
from horovod.ray.runner import HorovodOnRayExecutor as HorovodOnRayExecutor
from horovod.ray.runner import RayExecutor as RayExecutor
from horovod.ray.worker import BaseHorovodWorker as BaseHorovodWorker

if TYPE_CHECKING:
    from horovod.ray.train_backend import HorovodConfig as HorovodConfig
    from horovod.ray.trainer import HorovodTrainer as HorovodTrainer

__all__ = [
    "BaseHorovodWorker",
    "ElasticRayExecutor",
    "HorovodConfig",
    "HorovodOnRayExecutor",
    "HorovodTrainer",
    "RayExecutor",
]

# Imported on first use, because Ray Train takes seconds to import and the executors do not need it.
__getattr__ = lazily(
    __name__,
    {
        "HorovodConfig": "horovod.ray.train_backend:HorovodConfig",
        "HorovodTrainer": "horovod.ray.trainer:HorovodTrainer",
    },
)
