# SPDX-License-Identifier: Apache-2.0
"""Simplest communication hook: one allreduce for each bucket, as without a hook."""

from __future__ import annotations

import torch

from horovod.torch.hooks.bucket import Bucket, Running


def allreduce_hook(bucket: Bucket) -> Running:
    """Reduce the bucket with the optimizer's own operation."""
    reduced: torch.Tensor = yield bucket.allreduce_async(bucket.tensor)
    return reduced
