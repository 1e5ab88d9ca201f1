# SPDX-License-Identifier: Apache-2.0
"""Whether gradients move into memory that the ranks of the host share as soon as autograd has made them.

Where nothing overlaps with backward(), they would wait for its end and be staged from cold memory. Moved at once, they
are copied while they are in the cache, reduced without staging, and leave warm memory to the next gradient. Only those
move that nobody but their parameter knows, so that no program can tell the difference.
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

# Below, the calls for one gradient cost what staging it costs.
_LEAST_BYTES = 64 * 1024


def gradient_homes(dtypes: Sequence[int], wire: int, overlap: bool) -> GradientHomes | None:
    """Homes for gradients of these dtypes, by the engine's numbers; None where they had better stay where they are.

    `wire`: what the engine is to carry them as.
    """
    settings = default_context.settings
    chosen = settings["HOROVOD_TORCH_SHARED_GRADIENTS"]
    if not dtypes or not (chosen if chosen is not None else not overlap):
        return None
    if wire != AS_IT_IS and settings.flag("HOROVOD_DETERMINISTIC"):
        return None  # only then are they rounded on one host, which staging does
    topology = default_context.topology
    onlookers = _onlookers()
    if onlookers is None or topology.local_size < topology.size:
        return None
    homes = GradientHomes(tensor_reader(), tensor_maker(), onlookers, dtypes, _LEAST_BYTES)
    homes.move_to(default_context.world)
    return homes


@functools.cache
def _onlookers() -> Onlookers | None:
    """What a gradient that nobody else knows looks like differs between versions of torch: taken from a trial."""
    storage_count: Any = getattr(torch._C, "_storage_Use_Count", None)
    if storage_count is None:
        return None
    onlookers = Onlookers(storage_count)
    with torch.inference_mode(False), torch.enable_grad():
        trial: Any = torch.zeros(1, device="cpu", requires_grad=True)
        trial.register_post_accumulate_grad_hook(onlookers.learn)
        (trial * 2).backward()
    return onlookers
