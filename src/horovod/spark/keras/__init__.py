# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.spark.keras.estimator import KerasEstimator as KerasEstimator
from horovod.spark.keras.estimator import KerasModel as KerasModel
