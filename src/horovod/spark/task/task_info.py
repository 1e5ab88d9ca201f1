# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.not_yet import NotYet, function


class TaskInfo(NotYet): ...


get_available_devices = function(__name__, "get_available_devices")
set_resources = function(__name__, "set_resources")
