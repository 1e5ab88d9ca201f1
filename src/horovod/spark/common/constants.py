# SPDX-License-Identifier: Apache-2.0
"""Placeholder for this module of Horovod's Spark API, which is not available yet."""

from horovod.common.not_yet import value

BYTES_PER_GIB = 1 << 30


ARRAY = value(__name__, "ARRAY")
CUSTOM_SPARSE = value(__name__, "CUSTOM_SPARSE")
DENSE_VECTOR = value(__name__, "DENSE_VECTOR")
METRIC_PRINT_FREQUENCY = value(__name__, "METRIC_PRINT_FREQUENCY")
MIXED_SPARSE_DENSE_VECTOR = value(__name__, "MIXED_SPARSE_DENSE_VECTOR")
NOCHANGE = value(__name__, "NOCHANGE")
PETASTORM_HDFS_DRIVER = value(__name__, "PETASTORM_HDFS_DRIVER")
SPARSE_VECTOR = value(__name__, "SPARSE_VECTOR")
TOTAL_BUFFER_MEMORY_CAP_GIB = value(__name__, "TOTAL_BUFFER_MEMORY_CAP_GIB")
