# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.spark.common import util as util
from horovod.spark.common.backend import SparkBackend as SparkBackend
from horovod.spark.common.params import EstimatorParams as EstimatorParams
from horovod.spark.common.params import ModelParams as ModelParams


class HorovodEstimator(EstimatorParams): ...


class HorovodModel(ModelParams): ...
