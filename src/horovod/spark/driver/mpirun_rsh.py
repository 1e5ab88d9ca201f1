# SPDX-License-Identifier: Apache-2.0
"""Spark, under an import path of Horovod's: not available yet."""

from horovod.common.not_yet import function

env = function(__name__, "env")
