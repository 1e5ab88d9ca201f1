# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.spark.lightning.estimator import TorchEstimator as TorchEstimator
from horovod.spark.lightning.estimator import TorchModel as TorchModel
