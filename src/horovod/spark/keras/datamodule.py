# SPDX-License-Identifier: Apache-2.0
"""Spark, under an import path of Horovod's: not available yet."""

from horovod.common.lazily import lazily
from horovod.spark.common import constants as constants
from horovod.spark.common.datamodule import DataModule as DataModule


class NVTabularDataModule(DataModule): ...


class PetastormDataModule(DataModule): ...


__getattr__ = lazily(__name__, {"hvd": "horovod.tensorflow.keras"})
