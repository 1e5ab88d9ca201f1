# SPDX-License-Identifier: Apache-2.0
"""Communication hooks that compress gradients in torch's DistributedDataParallel, over any of its backends."""

from horovod.torch.ddp_hooks.int8 import Int8State, int8_hook
from horovod.torch.ddp_hooks.powersgd import PowerSGDState, powersgd_hook
from horovod.torch.ddp_hooks.topk import TopKState, topk_hook

__all__ = ["Int8State", "PowerSGDState", "TopKState", "int8_hook", "powersgd_hook", "topk_hook"]
