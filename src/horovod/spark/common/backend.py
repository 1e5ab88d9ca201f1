# SPDX-License-Identifier: Apache-2.0
"""Spark, under an import path of Horovod's: not available yet."""

from horovod.common.not_yet import NotYet, function


class Backend(NotYet): ...


class SparkBackend(Backend): ...


default_num_proc = function(__name__, "default_num_proc")
