# SPDX-License-Identifier: Apache-2.0
"""Problem to measure: a collective, on a number of bytes of a dtype, among a number of ranks.

`bytes` is the size of a rank's largest buffer: the input of allreduce, broadcast, alltoall and reducescatter, the
output of allgather. With this definition, all ranks together move comparable amounts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

OPS = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
ROOT = 0


@dataclass(frozen=True)
class Problem:
    """Problem for a library.

    Attributes:
        tensors: With more than 1, start that many independent allreduces, then wait for all of them.
        average: Compute the mean instead of the sum in an allreduce.
    """

    op: str
    bytes: int
    dtype: str
    ranks: int
    tensors: int = 1
    average: bool = False

    @property
    def count(self) -> int:
        """Return the elements of the largest buffer; if ranks have shares, these are equal."""
        elements = max(1, self.bytes // numpy_dtype(self.dtype).itemsize)
        if self.op in ("allreduce", "broadcast"):
            return elements
        return max(1, elements // self.ranks) * self.ranks

    @property
    def share(self) -> int:
        return self.count // self.ranks

    @property
    def actual_bytes(self) -> int:
        """Return `bytes`, rounded to an amount that can be divided among the ranks."""
        return self.count * numpy_dtype(self.dtype).itemsize

    @property
    def bus_factor(self) -> float:
        """Return the bytes that the best algorithm must send over the busiest link for each byte of the problem."""
        share_of_others = (self.ranks - 1) / self.ranks
        return {"allreduce": 2 * share_of_others, "broadcast": 1.0}.get(self.op, share_of_others)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def input(self, rank: int) -> Array:
        """Return this rank's buffer, filled so that a wrong result is noticed."""
        if self.op == "alltoall":
            return self._blocks([rank * self.ranks + to for to in range(self.ranks)])
        count = self.share if self.op == "allgather" else self.count
        return np.full(count, rank + 1, numpy_dtype(self.dtype))

    def output(self) -> Array:
        """Return a buffer for the result of an operation that does not work in place."""
        count = self.share if self.op == "reducescatter" else self.count
        return np.zeros(count, numpy_dtype(self.dtype))

    def expected(self, rank: int) -> Array:
        """Return the correct result.

        Its values are small multiples of one half, which every dtype represents exactly.
        """
        if self.op == "allgather":
            return self._blocks([source + 1 for source in range(self.ranks)])
        if self.op == "alltoall":
            return self._blocks([source * self.ranks + rank for source in range(self.ranks)])
        total = self.ranks * (self.ranks + 1) / 2 / (self.ranks if self.average else 1)
        count = self.share if self.op == "reducescatter" else self.count
        return np.full(count, ROOT + 1 if self.op == "broadcast" else total, numpy_dtype(self.dtype))

    def _blocks(self, values: list[int]) -> Array:
        return np.repeat(np.array(values).astype(numpy_dtype(self.dtype)), self.share)


def numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    return np.dtype(name)
