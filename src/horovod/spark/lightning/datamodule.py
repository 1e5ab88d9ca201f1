# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.not_yet import NotYet
from horovod.spark.common import constants as constants
from horovod.spark.common.constants import PETASTORM_HDFS_DRIVER as PETASTORM_HDFS_DRIVER
from horovod.spark.data_loaders.pytorch_data_loaders import (
    PytorchInfiniteAsyncDataLoader as PytorchInfiniteAsyncDataLoader,
)
from horovod.spark.data_loaders.pytorch_data_loaders import PytorchInmemAsyncDataLoader as PytorchInmemAsyncDataLoader


class PetastormDataModule(NotYet): ...
