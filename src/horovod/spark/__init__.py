# SPDX-License-Identifier: Apache-2.0
"""Spark, under an import path of Horovod's: not available yet."""

from horovod.spark.runner import run as run
from horovod.spark.runner import run_elastic as run_elastic
