# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.not_yet import NotYet
from horovod.spark.common.util import host_hash as host_hash
from horovod.spark.common.util import is_databricks as is_databricks


class Store(NotYet): ...


class AbstractFilesystemStore(Store): ...


class FilesystemStore(AbstractFilesystemStore): ...


class DBFSLocalStore(FilesystemStore): ...


class HDFSStore(AbstractFilesystemStore): ...


class LocalStore(FilesystemStore): ...
