# SPDX-License-Identifier: Apache-2.0
"""Ray, under an import path of Horovod's: not available yet."""

from horovod.common.log import logger as logger
from horovod.common.not_yet import NotYet
from horovod.ray.utils import detect_nics as detect_nics
from horovod.ray.worker import BaseHorovodWorker as BaseHorovodWorker
from horovod.runner.common.util import secret as secret
from horovod.runner.common.util import timeout as timeout
from horovod.runner.elastic.discovery import HostDiscovery as HostDiscovery
from horovod.runner.elastic.driver import ElasticDriver as ElasticDriver
from horovod.runner.elastic.rendezvous import create_rendezvous_handler as create_rendezvous_handler
from horovod.runner.elastic.settings import ElasticSettings as ElasticSettings
from horovod.runner.gloo_run import create_run_env_vars as create_run_env_vars
from horovod.runner.gloo_run import create_slot_env_vars as create_slot_env_vars
from horovod.runner.http.http_server import RendezvousServer as RendezvousServer


class ElasticRayExecutor(NotYet): ...


class GetTimeoutError(TimeoutError):
    """Never raised: what would raise it is not there yet."""


class RayHostDiscovery(HostDiscovery): ...


class TestDiscovery(RayHostDiscovery): ...
