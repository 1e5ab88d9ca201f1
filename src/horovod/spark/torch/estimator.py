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
from horovod.spark.torch import remote as remote
from horovod.spark.torch.datamodule import PetastormDataModule as PetastormDataModule
from horovod.spark.torch.util import deserialize_fn as deserialize_fn
from horovod.spark.torch.util import save_into_bio as save_into_bio
from horovod.spark.torch.util import serialize_fn as serialize_fn


class TorchEstimatorParamsWritable(NotYet): ...


class TorchEstimatorParamsReadable(NotYet): ...


class TorchEstimator(HorovodEstimator, TorchEstimatorParamsWritable, TorchEstimatorParamsReadable): ...


class TorchEstimatorParamsReader(HorovodParamsReader): ...


class TorchEstimatorParamsWriter(HorovodParamsWriter): ...


class TorchModel(HorovodModel, TorchEstimatorParamsWritable, TorchEstimatorParamsReadable): ...
