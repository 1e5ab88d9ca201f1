# SPDX-License-Identifier: Apache-2.0
"""Gradient compression by TensorFlow operations: error feedback, and exchanges that compress data between hosts."""

from horovod.tensorflow.compressing.gradients import METHODS as METHODS
from horovod.tensorflow.compressing.gradients import CompressedReduction as CompressedReduction
from horovod.tensorflow.compressing.gradients import bare_method as bare_method
from horovod.tensorflow.compressing.gradients import no_method as no_method
from horovod.tensorflow.compressing.gradients import reduce_without_memory as reduce_without_memory
from horovod.tensorflow.compressing.memory import Memories as Memories
from horovod.tensorflow.compressing.memory import Memory as Memory
from horovod.tensorflow.compressing.memory import SavedMemories as SavedMemories
from horovod.tensorflow.compressing.memory import is_own as is_own
from horovod.tensorflow.compressing.memory import memories_on as memories_on
