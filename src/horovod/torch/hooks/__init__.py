# SPDX-License-Identifier: Apache-2.0
"""Communication hooks: the user's code decides how the gradients of an optimizer travel between ranks."""

from horovod.torch.hooks.bucket import Bucket, CommHook
from horovod.torch.hooks.dense import allreduce_hook

__all__ = ["Bucket", "CommHook", "allreduce_hook"]
