# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.lazily import lazily
from horovod.common.not_yet import function
from horovod.common.util import gloo_built as gloo_built
from horovod.launcher.compat import secret as secret
from horovod.launcher.compat import timeout as timeout
from horovod.launcher.compat.controllers import is_gloo_used as is_gloo_used
from horovod.launcher.compat.controllers import run_controller as run_controller
from horovod.launcher.compat.threads import in_thread as in_thread
from horovod.spark.common.util import host_hash as host_hash
from horovod.spark.driver import driver_service as driver_service
from horovod.spark.driver import host_discovery as host_discovery
from horovod.spark.driver import job_id as job_id
from horovod.spark.gloo_run import gloo_run as gloo_run
from horovod.spark.gloo_run import gloo_run_elastic as gloo_run_elastic
from horovod.spark.mpi_run import mpi_run as mpi_run
from horovod.spark.task import task_service as task_service

MINIMUM_COMMAND_LIFETIME_S = 3
WAIT_FOR_COMMAND_START_DELAY_SECONDS = 0.1
WAIT_FOR_SHUTDOWN_DELAY_SECONDS = 0.1


run = function(__name__, "run")
run_elastic = function(__name__, "run_elastic")

__getattr__ = lazily(
    __name__,
    {
        "hvd_elastic_settings": "horovod.launcher.compat.elastic_settings",
        "hvd_settings": "horovod.launcher.compat.settings",
    },
)
