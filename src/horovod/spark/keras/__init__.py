# SPDX-License-Identifier: Apache-2.0
"""Spark, under an import path of Horovod's: not available yet."""

from horovod.spark.keras.estimator import KerasEstimator as KerasEstimator
from horovod.spark.keras.estimator import KerasModel as KerasModel
