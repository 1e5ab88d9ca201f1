# SPDX-License-Identifier: Apache-2.0
"""Spark, under an import path of Horovod's: not available yet."""

from horovod.common.not_yet import NotYet, function


class TaskInfo(NotYet): ...


get_available_devices = function(__name__, "get_available_devices")
set_resources = function(__name__, "set_resources")
