# SPDX-License-Identifier: Apache-2.0
"""Gradient compression as communication hooks: error feedback, and exchanges that compress the data between hosts."""

from horovod.torch.compressing.hook import CompressionHook as CompressionHook
