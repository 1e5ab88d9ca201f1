# SPDX-License-Identifier: Apache-2.0
"""Decision whether gradients move into memory that the host's ranks share as soon as autograd has made them.

If no reduction overlaps with backward(), gradients would wait for its end and then be staged from cold memory.
Gradients that move at once are copied while they are in the cache, are reduced without staging, and free warm memory
for the next gradient. A gradient moves only if nothing but its parameter refers to it, so that the program sees no
difference.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from horovod._engine import GradientHomes, Onlookers
from horovod.common.context import default_context
from horovod.common.dtypes import AS_IT_IS
from horovod.torch.adapter import tensor_maker, tensor_reader

# For smaller gradients, the calls that move one cost as much as staging it.
_LEAST_BYTES = 64 * 1024


def gradient_homes(dtypes: Sequence[int], wire: int, overlap: bool) -> GradientHomes | None:
    """Return shared memory for gradients of these dtypes (engine ids), or None if gradients should stay where they are.

    `wire` is the dtype id that the engine sends gradients as. `overlap` is True if host gradients are reduced during
    backward().
    """
    settings = default_context.settings
    chosen = settings["HOROVOD_TORCH_SHARED_GRADIENTS"]
    if not dtypes or not (chosen if chosen is not None else not overlap):
        return None
    if wire != AS_IT_IS and settings.flag("HOROVOD_DETERMINISTIC"):
        return None  # it makes staging round to the wire dtype; shared gradients are not rounded
    topology = default_context.topology
    onlookers = _onlookers()
    if onlookers is None or topology.local_size < topology.size:
        return None
    homes = GradientHomes(tensor_reader(), tensor_maker(), onlookers, dtypes, _LEAST_BYTES)
    homes.move_to(default_context.world)
    return homes


@functools.cache
def _onlookers() -> Onlookers | None:
    """Return a detector of external references, calibrated with a trial gradient because torch versions differ."""
    storage_count: Any = getattr(torch._C, "_storage_Use_Count", None)
    if storage_count is None:
        return None
    onlookers = Onlookers(storage_count)
    with torch.inference_mode(False), torch.enable_grad():
        trial: Any = torch.zeros(1, device="cpu", requires_grad=True)
        trial.register_post_accumulate_grad_hook(onlookers.learn)
        (trial * 2).backward()
    return onlookers
