# SPDX-License-Identifier: Apache-2.0
"""Communication hooks: functions of the user that reduce an optimizer's gradients over the ranks."""

from horovod.torch.hooks.bucket import Bucket, CommHook
from horovod.torch.hooks.dense import allreduce_hook

__all__ = ["Bucket", "CommHook", "allreduce_hook"]
