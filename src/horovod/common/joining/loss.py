# SPDX-License-Identifier: Apache-2.0
"""Kinds of loss of a rank, according to the error's text: it ended, or it may be alive but unreachable.

The functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ENDED = "ended"
SILENT = "silent"  # no message arrived: the rank is frozen, or its network is cut
REFUSED = "refused"  # its address refuses connections: it has ended, or a firewall answers instead

# Matches texts of engine/agreement/departures.cc and transport/connector.cc, and the system's error texts.
_SILENT = re.compile(
    r"has given no sign of life|has acknowledged nothing|timed out|[Uu]nreachable|No route to host|no answer"
    # A route or a firewall on the reporting rank's own host forbids the connection.
    r"|could not connect to rank .*: (?:Invalid argument|Permission denied|Operation not permitted)"
)
_REFUSED = re.compile(r"ended before it had connected|[Cc]onnection refused")
_OBSERVER = re.compile(r"says rank (\d{1,9})|rank (\d{1,9}) could not connect to rank")


@dataclass(frozen=True)
class Loss:
    """Loss of a rank.

    Attributes:
        rank: The rank that was lost.
        how: ENDED, SILENT or REFUSED.
        by: The rank that noticed it, which may not be the rank that reports it; None if unknown.
    """

    rank: int
    how: str = ENDED
    by: int | None = None

    def packed(self) -> list[Any]:
        return [self.rank, self.how, self.by]

    @classmethod
    def unpacked(cls, found: Sequence[Any]) -> Loss:
        """Return the loss that `packed` described. Raise ValueError or TypeError for anything else."""
        rank, how, by = found
        if type(rank) is not int or (by is not None and type(by) is not int):
            raise TypeError(f"ranks must be integers: {found!r:.60}")
        if how not in (ENDED, SILENT, REFUSED):
            raise ValueError(f"unknown way to lose a rank: {how!r:.60}")
        return cls(rank, how, by)


def loss_in(text: str, rank: int) -> Loss:
    """Return how `rank` was lost according to an error's text. Frameworks may add text before and after."""
    said = text.partition(f"rank {rank} is lost")[2].partition("\n")[0]
    if _SILENT.search(said):
        how = SILENT
    elif _REFUSED.search(said):
        how = REFUSED
    else:
        how = ENDED
    found = _OBSERVER.search(said)
    return Loss(rank, how, int(found[1] or found[2]) if found else None)
