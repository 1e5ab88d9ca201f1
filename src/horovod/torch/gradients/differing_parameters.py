# SPDX-License-Identifier: Apache-2.0
"""Which parameter makes the optimizers of ranks different, after their first exchanges have not found each other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from horovod.common.exceptions import HorovodInternalError
from horovod.common.objects import allgather_object
from horovod.torch.gradients.known_optimizers import KnownOptimizer

_IN_EXCHANGE = re.compile(r"rank (\d+) in backward\(\) or step\(\) of the optimizer")  # as the engine describes it
_NO_PARAMETER = "missing"

Described = Mapping[str, str]  # parameters' types and shapes by their names


def find(optimizer: KnownOptimizer, error: str) -> str | None:
    """Describe a parameter that differs. `error`: the engine's, which all ranks in it have been sent.

    Return None if another rank of the optimizer's process set was not in an optimizer's exchange, and so would not
    come here, or if the parameters are the same.
    """
    ranks = optimizer.process_set.ranks or []
    if {int(rank) for rank in _IN_EXCHANGE.findall(error)} != set(ranks):
        return None
    try:
        return first_difference(
            ranks, allgather_object(optimizer.described(), "DistributedOptimizer.compare", optimizer.process_set)
        )
    except HorovodInternalError:
        return None  # a rank was in the exchange of another process set: what is known already has to do


def first_difference(ranks: Sequence[int], described: Sequence[Described]) -> str | None:
    """Name the first parameter that is not the same on all ranks, in the order of the first rank."""
    names = dict.fromkeys(name for one in described for name in one)
    for name in names:
        first = described[0].get(name, _NO_PARAMETER)
        for rank, one in zip(ranks, described, strict=True):
            other = one.get(name, _NO_PARAMETER)
            if other != first:
                return f"{name!r} is {first} on rank {ranks[0]} and {other} on rank {rank}"
    return None
