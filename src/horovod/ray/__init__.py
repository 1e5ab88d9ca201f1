# SPDX-License-Identifier: Apache-2.0
"""Horovod on Ray: executors whose workers are actors."""

from horovod.common.frameworks import require

require(__name__)

from horovod.ray.elastic import ElasticRayExecutor as ElasticRayExecutor
from horovod.ray.runner import RayExecutor as RayExecutor
from horovod.ray.worker import BaseHorovodWorker as BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]
