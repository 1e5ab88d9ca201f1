# SPDX-License-Identifier: Apache-2.0
"""Spark, under an import path of Horovod's: not available yet."""

from horovod.spark.torch.estimator import TorchEstimator as TorchEstimator
from horovod.spark.torch.estimator import TorchModel as TorchModel
