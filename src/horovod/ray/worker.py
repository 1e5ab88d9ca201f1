# SPDX-License-Identifier: Apache-2.0
"""Ray, under an import path of Horovod's: not available yet."""

from horovod.common.not_yet import NotYet
from horovod.ray import ray_logger as ray_logger


class BaseHorovodWorker(NotYet): ...
