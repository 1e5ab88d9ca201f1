# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.lazily import lazily
from horovod.common.not_yet import NotYet
from horovod.spark.common import constants as constants
from horovod.spark.common.datamodule import DataModule as DataModule


class MapIterable(NotYet): ...


class NVTabularDataModule(DataModule): ...


class PetastormDataModule(DataModule): ...


__getattr__ = lazily(__name__, {"hvd": "horovod.torch"})
