# SPDX-License-Identifier: Apache-2.0
"""Algebra of PowerSGD: which tensors of a bucket are factored as matrices, and where their factors lie.

All matrices of a bucket have their P factors in one flat tensor and their Q factors in another, so that one collective
exchanges all factors of a kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from horovod.common.compression_methods import PowerSGD

_SMALLEST = 1e-30  # lower limit of the divisor that scales matrices to 1, because squares of small values underflow


@dataclass(frozen=True)
class Matrix:
    """Tensor of a bucket as a matrix of `rows` x `columns`, and the rank of its factors."""

    offset: int  # in the bucket, in elements
    rows: int
    columns: int
    rank: int

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the matrix as a view of the bucket's flat tensor."""
        return flat[self.offset : self.offset + self.rows * self.columns].view(self.rows, self.columns)


class Factors:
    """Division of a bucket into matrices, which have factors P and Q, and the remaining tensors, which stay dense."""

    def __init__(self, shapes: Sequence[Sequence[int]], method: PowerSGD) -> None:
        matrices: list[Matrix] = []
        self.dense: list[tuple[int, int]] = []  # offset and length of each tensor that is not factored
        offset = 0
        for shape in shapes:
            count = math.prod(shape)
            folded = fold(shape)
            if folded is not None and is_worth_factoring(*folded, method):
                matrices.append(Matrix(offset, *folded, rank=min(method.rank, *folded)))
            elif count:
                self.dense.append((offset, count))
            offset += count
        # Matrices whose P have equal shapes are adjacent, so that they are orthonormalised together.
        self.matrices = sorted(matrices, key=lambda it: (it.rows, it.rank, it.offset))
        self.count = offset
        self.dense_count = sum(length for _, length in self.dense)
        self.p_count = sum(it.rows * it.rank for it in self.matrices)
        self.q_count = sum(it.columns * it.rank for it in self.matrices)

    def first_q(self, seed: int, device: torch.device) -> torch.Tensor:
        """Return the first Q of all matrices, equal on all ranks.

        Values are uniform, because these are equal on every processor; normal ones depend on its instruction set.
        """
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(self.q_count, generator=generator).mul_(2).sub_(1).to(device)

    def multiply(self, flat: torch.Tensor, q: torch.Tensor, p: torch.Tensor) -> None:
        """Write P = M Q of all matrices M in the bucket's flat tensor to `p`."""
        for matrix, left, right in self.pairs(p, q):
            torch.mm(matrix.of(flat), right, out=left)

    def multiply_transposed(self, flat: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> None:
        """Write Q = M^T P of all matrices M in the bucket's flat tensor to `q`."""
        for matrix, left, right in self.pairs(p, q):
            multiply_transposed(matrix.of(flat), left, right)

    def restore(self, p: torch.Tensor, q: torch.Tensor, flat: torch.Tensor) -> None:
        """Write M' = P Q^T of all matrices to their places in the bucket's flat tensor."""
        for matrix, left, right in self.pairs(p, q):
            torch.mm(left, right.t(), out=matrix.of(flat))

    def orthonormalise(self, p: torch.Tensor) -> None:
        """Replace each P by an orthonormal basis of its columns."""
        offset = 0
        for (rows, rank), group in groupby(self.matrices, key=lambda it: (it.rows, it.rank)):
            length = len(list(group)) * rows * rank
            orthonormalise(p[offset : offset + length].view(-1, rows, rank))
            offset += length

    def pairs(self, p: torch.Tensor, q: torch.Tensor) -> Iterator[tuple[Matrix, torch.Tensor, torch.Tensor]]:
        """Yield each matrix with the views of its factors in `p` and `q`."""
        at_p = at_q = 0
        for it in self.matrices:
            p_end, q_end = at_p + it.rows * it.rank, at_q + it.columns * it.rank
            yield it, p[at_p:p_end].view(it.rows, it.rank), q[at_q:q_end].view(it.columns, it.rank)
            at_p, at_q = p_end, q_end


def multiply_transposed(matrix: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> None:
    """Write M^T P of one matrix to `q`, computed as (P^T M)^T, which is faster because it reads the matrix by rows."""
    q.copy_(torch.mm(p.t(), matrix).t())


def fold(shape: Sequence[int]) -> tuple[int, int] | None:
    """Return rows and columns of a tensor as a matrix, or None if it has fewer than two dimensions or no values."""
    if len(shape) < 2 or not math.prod(shape):
        return None
    return shape[0], math.prod(shape[1:])


def is_worth_factoring(rows: int, columns: int, method: PowerSGD) -> bool:
    """Return True if the factors are smaller than the matrix by the method's minimum rate."""
    return rows * columns >= method.min_rate * method.rank * (rows + columns)


def orthonormalise(matrices: torch.Tensor) -> None:
    """Replace each matrix in a float32 tensor [matrices, rows, rank] by an orthonormal basis that spans its columns.

    Use QR by reflections, which completes the basis if columns depend on each other or are zero. Gram-Schmidt would
    amplify the rounding errors of such columns, or leave zeros, from which the next step could not recover.
    """
    largest = matrices.abs().amax((1, 2), keepdim=True).clamp_(min=_SMALLEST)
    matrices.copy_(torch.linalg.qr(matrices / largest).Q)
