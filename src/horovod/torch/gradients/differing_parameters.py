# SPDX-License-Identifier: Apache-2.0
"""Search for the parameter in which ranks' optimizers differ, after their first exchanges did not match each other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from horovod.common.exceptions import HorovodInternalError
from horovod.common.objects import allgather_object
from horovod.torch.gradients.known_optimizers import KnownOptimizer

_IN_EXCHANGE = re.compile(r"rank (\d+) in backward\(\) or step\(\) of the optimizer")  # the engine's wording
_NO_PARAMETER = "missing"

Described = Mapping[str, str]  # type and shape of each parameter, by its name


def find(optimizer: KnownOptimizer, error: str) -> str | None:
    """Describe a parameter that differs.

    `error` is the engine's message, which all ranks in the exchange have received. Return None if the parameters are
    equal. Also return None if another rank of the optimizer's process set was not in an optimizer's exchange, because
    that rank does not call this function and so would not answer.
    """
    ranks = optimizer.process_set.ranks or []
    if {int(rank) for rank in _IN_EXCHANGE.findall(error)} != set(ranks):
        return None
    try:
        return first_difference(
            ranks, allgather_object(optimizer.described(), "DistributedOptimizer.compare", optimizer.process_set)
        )
    except HorovodInternalError:
        return None  # a rank was in an exchange of another process set, so leave the error without this detail


def first_difference(ranks: Sequence[int], described: Sequence[Described]) -> str | None:
    """Describe the first parameter that is not equal on all ranks, in the first rank's order."""
    names = dict.fromkeys(name for one in described for name in one)
    for name in names:
        first = described[0].get(name, _NO_PARAMETER)
        for rank, one in zip(ranks, described, strict=True):
            other = one.get(name, _NO_PARAMETER)
            if other != first:
                return f"{name!r} is {first} on rank {ranks[0]} and {other} on rank {rank}"
    return None
