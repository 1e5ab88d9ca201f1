# SPDX-License-Identifier: Apache-2.0
"""The TensorFlow door: `import horovod.tensorflow as hvd`."""

from horovod.tensorflow.mpi_ops import *  # noqa: F403
