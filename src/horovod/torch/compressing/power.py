# SPDX-License-Identifier: Apache-2.0
"""PowerSGD: each rank multiplies its rows of the host's matrices, so that only the small factors leave a host."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from horovod.common.compression_methods import PowerSGD
from horovod.common.host_shares import HostShares
from horovod.common.residual_moves import Segments
from horovod.common.rules import Sum
from horovod.torch.codecs.low_rank import Factors, Matrix, fold, is_worth_factoring, multiply_transposed
from horovod.torch.compressing.loss_scale import LossScale
from horovod.torch.compressing.parts import BucketPart, Kept, Reduced
from horovod.torch.compressing.within_host import summed_here
from horovod.torch.hooks.bucket import Bucket

Tensor = torch.Tensor


class PowerPart(BucketPart):
    """State of one bucket whose matrices travel as factors. The Q of the last step is equal on all ranks."""

    counts_steps = True

    def __init__(self, method: PowerSGD, scale: LossScale) -> None:
        super().__init__(method, scale)
        self._power = method

    def chooses(self, name: str, gradient: Tensor) -> bool:
        """Return True for matrices whose factors are small enough."""
        folded = fold(gradient.shape)
        is_small = folded is not None and is_worth_factoring(*folded, self._power)
        return is_small and super().chooses(name, gradient)

    def is_dense(self, shares: HostShares) -> bool:
        """Return True on one host, and in the steps before `start_after`."""
        return super().is_dense(shares) or self.steps < self._power.start_after

    def after_dense(self, bucket: Bucket, total: Tensor) -> Tensor:
        """Count the dense steps before the first compressed one."""
        return super().after_dense(bucket, total) if self.steps < self._power.start_after else total

    def segments(self, bucket: Bucket, chosen: list[str], shares: HostShares) -> dict[str, Segments]:
        """Return the rows of each matrix whose residuals this rank keeps."""
        return {"residual": Rows(self._factors(bucket, chosen), shares).segments()}

    def _factors(self, bucket: Bucket, chosen: list[str]) -> Factors:
        return Factors([bucket.gradients[name].shape for name in chosen], self._power)

    def reduce(self, bucket: Bucket, chosen: list[str], shares: HostShares) -> Reduced:
        """Return the sum over all ranks as the factors approximate it; keep the approximation error and Q."""
        gradients = [bucket.gradients[name] for name in chosen]
        factors = self._factors(bucket, chosen)
        rows = Rows(factors, shares)
        values = torch.cat([it.reshape(-1).float() for it in rows.in_order_of_shares(gradients)])
        m = yield from summed_here(bucket, values, shares, rows.bounds)
        memory = self.memory_of(bucket, chosen, shares)
        residual = memory.get("residual")
        if residual is not None:
            m = m + residual.to(m.device)  # a restored residual is in host memory
        q = self.kept.shared.get("q")
        if q is None or q.numel() != factors.q_count:
            q = factors.first_q(self._power.seed + bucket.index, m.device)
        p = m.new_zeros(factors.p_count)
        q = q.to(m)
        for (_, first, end, left, right), block in zip(rows.of_mine(p, q), rows.blocks(m), strict=True):
            if end > first:
                torch.mm(block, right, out=left[first:end])
        # The rows of other ranks are zero here, so that the sum over all ranks also gathers the rows.
        p = yield bucket.allreduce_async(p, Sum, stage="p")
        factors.orthonormalise(p)
        q = torch.zeros_like(q)
        for (_, first, end, left, right), block in zip(rows.of_mine(p, q), rows.blocks(m), strict=True):
            if end > first:
                multiply_transposed(block, left[first:end], right)
        q = yield bucket.allreduce_async(q, Sum, stage="q")
        total = m.new_empty(factors.count)
        factors.restore(p, q, total)
        kept = Kept(shared={"q": q})
        if self.method.error_feedback:
            # Each host accounts for an equal part of the sum. Its residual is the difference between its own values and
            # this part.
            lost = m.clone() if residual is None else m
            for (matrix, first, end, _, _), block in zip(rows.of_mine(p, q), rows.blocks(lost), strict=True):
                block.sub_(matrix.of(total)[first:end], alpha=1 / shares.hosts)
            kept.memory["residual"] = lost
        return total, kept


class Rows:
    """Division of the rows of matrices among the ranks of a host: each owner has a block of rows of each matrix."""

    def __init__(self, factors: Factors, shares: HostShares) -> None:
        self._factors = factors
        self._count = shares.count
        self._mine = shares.mine
        self.bounds = [0]  # boundaries of the shares in the flat tensor, in elements
        for share in range(shares.count):
            length = sum((end - first) * it.columns for it, first, end in self._cuts(share))
            self.bounds.append(self.bounds[-1] + length)

    def segments(self) -> Segments:
        """Return where this rank's rows of each matrix begin and end among all values."""
        return tuple(
            (it.offset + first * it.columns, it.offset + end * it.columns) for it, first, end in self._cuts(self._mine)
        )

    def in_order_of_shares(self, gradients: list[Tensor]) -> Iterator[Tensor]:
        """Yield blocks of rows of the gradients: all blocks of the first share, then all of the second, and so on."""
        by_offset, offset = dict[int, Tensor](), 0
        for it in gradients:
            by_offset[offset] = it
            offset += it.numel()
        for share in range(self._count):
            for matrix, first, end in self._cuts(share):
                yield by_offset[matrix.offset].reshape(matrix.rows, matrix.columns)[first:end]

    def blocks(self, mine: Tensor) -> Iterator[Tensor]:
        """Yield views of this rank's rows of each matrix in `mine`, the flat tensor of its share."""
        at = 0
        for matrix, first, end in self._cuts(self._mine):
            length = (end - first) * matrix.columns
            yield mine[at : at + length].view(end - first, matrix.columns)
            at += length

    def of_mine(self, p: Tensor, q: Tensor) -> Iterator[tuple[Matrix, int, int, Tensor, Tensor]]:
        """Yield each matrix with this rank's first row, the end of its rows, and the matrix's factors."""
        for (matrix, left, right), (_, first, end) in zip(
            self._factors.pairs(p, q), self._cuts(self._mine), strict=True
        ):
            yield matrix, first, end, left, right

    def _cuts(self, share: int | None) -> Iterator[tuple[Matrix, int, int]]:
        for it in self._factors.matrices:
            if share is None:
                yield it, 0, 0
            else:
                yield it, it.rows * share // self._count, it.rows * (share + 1) // self._count
