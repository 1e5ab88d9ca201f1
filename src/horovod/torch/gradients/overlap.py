# SPDX-License-Identifier: Apache-2.0
"""Whether gradients are reduced while backward() still runs.

A reduction through shared memory is work for a processor. On one that backward() keeps busy it gains nothing, and the
two threads take turns and spoil each other's caches: then all of it is left to the thread that waits at the end. Where
a GPU computes, processors have little to do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

import torch

from horovod.common.context import default_context
from horovod.common.process_sets import ProcessSet


class Overlap(NamedTuple):
    """For gradients in host memory, and for those on a GPU of one's own."""

    on_host: bool
    on_gpu: bool

    def of(self, named: Iterable[tuple[str, torch.Tensor]]) -> bool:
        """For a model with these parameters. Those in host memory go as early as those beside them on a GPU."""
        return self.on_host or (self.on_gpu and any(parameter.is_cuda for _, parameter in named))


def overlaps() -> Overlap:
    """As HOROVOD_TORCH_OVERLAP says; else on the host if others take part, or if this rank has a processor to spare."""
    chosen = default_context.settings["HOROVOD_TORCH_OVERLAP"]
    if chosen is not None:
        return Overlap(bool(chosen), bool(chosen))
    topology = default_context.topology
    spare = topology.local_size < topology.size or _processors(topology.local_size) > torch.get_num_threads()
    return Overlap(on_host=spare, on_gpu=True)


def gpus_are_shared(process_set: ProcessSet) -> bool:
    """Whether ranks of the set share GPUs, alike on all of them.

    They have found out with their first CUDA tensor. Before that a guess: a process that sees fewer GPUs than there are
    ranks on its host may share them, or may have been given one of its own.
    """
    try:
        member = default_context.membership_of(process_set)
    except ValueError:  # no member: it has no say
        return False
    known = member.world.shares_gpus(member.id)
    return bool(known) if known >= 0 else torch.cuda.device_count() < default_context.topology.local_size


def _processors(local_size: int) -> float:
    """How many this rank may count on: those it is bound to, or its share of all."""
    mine = len(os.sched_getaffinity(0))
    return mine if mine < (os.cpu_count() or 1) else mine / local_size
