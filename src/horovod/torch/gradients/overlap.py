# SPDX-License-Identifier: Apache-2.0
"""Decision whether gradients are reduced while backward() still runs.

A reduction through shared memory is work for a processor. If backward() keeps that processor busy, overlapping gains
nothing, because the two threads take turns and evict each other's caches. All reductions are then left to the thread
that waits at the end of backward(). Where a GPU computes, the host's processors have little to do, so overlap pays.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

import torch

from horovod.common.context import default_context
from horovod.common.process_sets import ProcessSet


class Overlap(NamedTuple):
    """Decision for gradients in host memory, and for gradients on a GPU that this rank does not share."""

    on_host: bool
    on_gpu: bool

    def of(self, named: Iterable[tuple[str, torch.Tensor]]) -> bool:
        """Return True if gradients of these parameters are reduced during backward().

        If any of them is on a GPU, gradients in host memory overlap, too.
        """
        return self.on_host or (self.on_gpu and any(parameter.is_cuda for _, parameter in named))


def overlaps() -> Overlap:
    """Return what HOROVOD_TORCH_OVERLAP sets, or the default.

    By default gradients on GPUs overlap. Those in host memory overlap if the job has several hosts, or if this rank may
    use more processors than torch has threads.
    """
    chosen = default_context.settings["HOROVOD_TORCH_OVERLAP"]
    if chosen is not None:
        return Overlap(bool(chosen), bool(chosen))
    topology = default_context.topology
    spare = topology.local_size < topology.size or _processors(topology.local_size) > torch.get_num_threads()
    return Overlap(on_host=spare, on_gpu=True)


def gpus_are_shared(process_set: ProcessSet) -> bool:
    """Return True if ranks of the set share GPUs; all ranks return the same answer.

    The ranks have found this out with their first CUDA tensor. Before that, return a guess: a process that sees fewer
    GPUs than there are ranks on its host may share them, or may have been given a GPU that no other rank uses.
    """
    try:
        member = default_context.membership_of(process_set)
    except ValueError:  # this rank is not a member of the set, so its answer does not matter
        return False
    known = member.world.shares_gpus(member.id)
    return bool(known) if known >= 0 else torch.cuda.device_count() < default_context.topology.local_size


def _processors(local_size: int) -> float:
    """Return how many processors this rank may use: those it is bound to, or its share of all of them."""
    mine = len(os.sched_getaffinity(0))
    return mine if mine < (os.cpu_count() or 1) else mine / local_size
