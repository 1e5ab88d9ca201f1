# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.not_yet import function
from horovod.launcher.compat import codec as codec
from horovod.launcher.compat import secret as secret
from horovod.launcher.compat.threads import in_thread as in_thread
from horovod.spark.driver import driver_service as driver_service
from horovod.spark.task import task_info as task_info
from horovod.spark.task import task_service as task_service
from horovod.spark.task.task_info import get_available_devices as get_available_devices

task_exec = function(__name__, "task_exec")
