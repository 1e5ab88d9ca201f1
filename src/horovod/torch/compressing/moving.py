# SPDX-License-Identifier: Apache-2.0
"""Exchange of residuals among the ranks of a host, by offsets, after the ranks or the hosts of a job have changed."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import torch

from horovod.common.log import logger
from horovod.common.residual_moves import Holding, Move, Segments, length_of, moves, positions
from horovod.torch.hooks.bucket import Bucket

Tensor = torch.Tensor


class Moving:
    """Exchange of one bucket's residuals. All ranks of the set run it; each gives parts to ranks of its host only."""

    def __init__(
        self, bucket: Bucket, method: str, here: Sequence[int], old: Sequence[Holding], new: Sequence[Holding]
    ) -> None:
        """Prepare the exchange.

        Args:
            method: Name of the compression method, for the log.
            here: The ranks of this host, by their index in the set.
            old: What each of them has. Residuals of another host are left out.
            new: What each of them owns from now on.
        """
        self._bucket = bucket
        self._method = method
        self._here = here
        self._me = here.index(bucket.rank)
        self._old = old
        self._new = new

    def run(
        self, kinds: Sequence[str], kept: Mapping[str, Tensor], factors: Mapping[int, float]
    ) -> Generator[Any, Any, dict[str, Tensor]]:
        """Return this rank's residuals; parts that no rank of the host has are zero.

        Args:
            kinds: Names of the residuals, equal on all ranks.
            kept: What this rank has.
            factors: Factors that convert the residuals of other ranks to the loss scale of this rank's.
        """
        found: dict[str, Tensor] = {}
        lost: list[Tensor] = []  # what this rank has and no rank takes over
        moved = missing = 0
        for kind in kinds:
            old, new = self._segments(self._old, kind), self._segments(self._new, kind)
            table = moves(old, new)
            mine = kept.get(kind, torch.empty(0, dtype=torch.float32)).to(self._bucket.tensor.device)
            rest = mine.clone()
            target = torch.zeros(length_of(new[self._me]), dtype=torch.float32, device=mine.device)
            for it in (it for it in table if it.sender == self._me):
                rest[positions(old[self._me], it.start, it.end)] = 0.0
            yield from self._exchange(kind, table, (old[self._me], mine), (new[self._me], target), factors)
            received = [it for it in table if it.receiver == self._me]
            moved += sum(it.end - it.start for it in received if it.sender != self._me)
            missing += len(target) - sum(it.end - it.start for it in received)
            lost.append(rest)
            found[kind] = target
        self._log(moved, missing, norm_of(lost))
        return found

    def _exchange(
        self,
        kind: str,
        table: Sequence[Move],
        source: tuple[Segments, Tensor],
        target: tuple[Segments, Tensor],
        factors: Mapping[int, float],
    ) -> Generator[Any, Any, None]:
        """Send the parts of `source` that other ranks own, and put what this rank owns into `target`."""
        (old, mine), (new, total) = source, target
        splits = [0] * self._bucket.size
        parts = [mine[:0]]
        for it in table:
            if it.sender == self._me:
                part = mine[positions(old, it.start, it.end)]
                if it.receiver == self._me:
                    total[positions(new, it.start, it.end)] = part
                else:
                    parts.append(part)
                    splits[self._here[it.receiver]] += len(part)
        got, _ = yield self._bucket.alltoall_async(torch.cat(parts), splits, stage=f"moved.{kind}")
        at = 0
        # An alltoall returns the parts in the order of the ranks that have sent them.
        for it in sorted((it for it in table if it.receiver == self._me), key=lambda it: it.sender):
            if it.sender != self._me:
                length = it.end - it.start
                factor = factors.get(self._here[it.sender], 1.0)
                total[positions(new, it.start, it.end)] = got[at : at + length] * factor
                at += length

    def _log(self, moved: int, missing: int, lost: float) -> None:
        if moved or missing or lost:
            logger.info(
                "%s: the ranks or hosts have changed. Of the residuals that this rank keeps for bucket %d, %d values "
                "come from other ranks of the host and %d begin with zero, because the ranks that had them have left. "
                "Residuals of norm %g, which no rank of this host keeps, are dropped.",
                self._method,
                self._bucket.index,
                moved,
                missing,
                lost,
            )

    @staticmethod
    def _segments(holdings: Sequence[Holding], kind: str) -> list[Segments]:
        return [it.segments.get(kind, ()) for it in holdings]


def norm_of(tensors: Iterable[Tensor]) -> float:
    """Return the Euclidean norm of all values of some tensors."""
    return float(sum(float(it.double().square().sum()) for it in tensors) ** 0.5)
