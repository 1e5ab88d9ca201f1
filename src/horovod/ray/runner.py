# SPDX-License-Identifier: Apache-2.0
"""Ray, under an import path of Horovod's: not available yet."""

from horovod.common.log import logger as logger
from horovod.common.not_yet import NotYet
from horovod.ray.adapter import Adapter as Adapter
from horovod.ray.adapter import BaseParams as BaseParams
from horovod.ray.elastic_v2 import ElasticParams as ElasticParams
from horovod.ray.strategy import ColocatedStrategy as ColocatedStrategy
from horovod.ray.strategy import PGStrategy as PGStrategy
from horovod.ray.utils import detect_nics as detect_nics
from horovod.ray.utils import map_blocking as map_blocking
from horovod.ray.utils import nics_to_env_var as nics_to_env_var
from horovod.runner.common.util import hosts as hosts
from horovod.runner.common.util import secret as secret
from horovod.runner.common.util import timeout as timeout
from horovod.runner.http.http_server import RendezvousServer as RendezvousServer


class Coordinator(NotYet): ...


class MiniSettings(NotYet): ...


class RayExecutor(NotYet): ...


class StaticAdapter(Adapter): ...


class StaticParams(BaseParams): ...
