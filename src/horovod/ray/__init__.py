# SPDX-License-Identifier: Apache-2.0
"""Ray, under an import path of Horovod's: not available yet."""

from horovod.ray.elastic import ElasticRayExecutor as ElasticRayExecutor
from horovod.ray.runner import RayExecutor as RayExecutor
from horovod.ray.worker import BaseHorovodWorker as BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]
