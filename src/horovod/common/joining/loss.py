# SPDX-License-Identifier: Apache-2.0
"""How a rank was lost, by the error that names it: it ended, or it may live and just not be reached. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ENDED = "ended"
SILENT = "silent"  # nothing was heard of it: it is frozen, or cut off
REFUSED = "refused"  # it is not there where it is to be found: it has ended, or a firewall answers for it

# As engine/agreement/departures.cc and transport/connector.cc have them, and the system's words for errors.
_SILENT = re.compile(
    r"has given no sign of life|has acknowledged nothing|timed out|[Uu]nreachable|No route to host|no answer"
    # A route or a firewall of the observer's own host forbids the connection.
    r"|could not connect to rank .*: (?:Invalid argument|Permission denied|Operation not permitted)"
)
_REFUSED = re.compile(r"ended before it had connected|[Cc]onnection refused")
_OBSERVER = re.compile(r"says rank (\d{1,9})|rank (\d{1,9}) could not connect to rank")


@dataclass(frozen=True)
class Loss:
    """`rank` is the one that was lost. `by`: the rank that found out, which may be another than the one that tells."""

    rank: int
    how: str = ENDED
    by: int | None = None

    def packed(self) -> list[Any]:
        return [self.rank, self.how, self.by]

    @classmethod
    def unpacked(cls, found: Sequence[Any]) -> Loss:
        """Return what was packed. ValueError or TypeError if that is not what it is."""
        rank, how, by = found
        if type(rank) is not int or (by is not None and type(by) is not int):
            raise TypeError(f"ranks must be integers: {found!r:.60}")
        if how not in (ENDED, SILENT, REFUSED):
            raise ValueError(f"a rank cannot be lost in this way: {how!r:.60}")
        return cls(rank, how, by)


def loss_in(text: str, rank: int) -> Loss:
    """Return how an error's text says that `rank` was lost. Frameworks add words of their own before and after it."""
    said = text.partition(f"rank {rank} is lost")[2].partition("\n")[0]
    if _SILENT.search(said):
        how = SILENT
    elif _REFUSED.search(said):
        how = REFUSED
    else:
        how = ENDED
    found = _OBSERVER.search(said)
    return Loss(rank, how, int(found[1] or found[2]) if found else None)
