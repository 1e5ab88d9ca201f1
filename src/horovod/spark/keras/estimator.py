# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.not_yet import NotYet
from horovod.launcher.compat import codec as codec
from horovod.spark.common import util as util
from horovod.spark.common.estimator import HorovodEstimator as HorovodEstimator
from horovod.spark.common.estimator import HorovodModel as HorovodModel
from horovod.spark.common.params import EstimatorParams as EstimatorParams
from horovod.spark.common.serialization import HorovodParamsReader as HorovodParamsReader
from horovod.spark.common.serialization import HorovodParamsWriter as HorovodParamsWriter
from horovod.spark.keras import remote as remote
from horovod.spark.keras.datamodule import PetastormDataModule as PetastormDataModule
from horovod.spark.keras.util import TFKerasUtil as TFKerasUtil


class KerasEstimatorParamsReadable(NotYet): ...


class KerasEstimatorParamsWritable(NotYet): ...


class KerasEstimator(HorovodEstimator, KerasEstimatorParamsReadable, KerasEstimatorParamsWritable): ...


class KerasEstimatorParamsReader(HorovodParamsReader): ...


class KerasEstimatorParamsWriter(HorovodParamsWriter): ...


class KerasModel(HorovodModel, KerasEstimatorParamsReadable, KerasEstimatorParamsWritable): ...
