# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.not_yet import function
from horovod.spark.common.util import to_list as to_list

to_lightning_module = function(__name__, "to_lightning_module")
