# SPDX-License-Identifier: Apache-2.0
"""Ray, under an import path of Horovod's: not available yet."""

from horovod.common.log import logger as logger
from horovod.common.not_yet import NotYet, function
from horovod.ray.utils import map_blocking as map_blocking
from horovod.ray.worker import BaseHorovodWorker as BaseHorovodWorker


class BaseStrategy(NotYet): ...


class ColocatedStrategy(BaseStrategy): ...


class PGStrategy(BaseStrategy): ...


create_placement_group = function(__name__, "create_placement_group")
