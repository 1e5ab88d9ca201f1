# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.spark.runner import run as run
from horovod.spark.runner import run_elastic as run_elastic
