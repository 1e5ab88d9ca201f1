# SPDX-License-Identifier: Apache-2.0
"""One thing to measure: which collective, on how many bytes of which type, among how many ranks.

`bytes` is the size of the largest buffer that a rank holds: the input of allreduce, broadcast, alltoall and
reducescatter, the output of allgather. All ranks together then move comparable amounts.
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
    """`tensors` above 1: that many independent allreduces are started, then all of them are waited for.

    `average`: allreduce gives the mean instead of the sum.
    """

    op: str
    bytes: int
    dtype: str
    ranks: int
    tensors: int = 1
    average: bool = False

    @property
    def count(self) -> int:
        """Elements of the largest buffer; every rank gets an equal share where shares exist."""
        elements = max(1, self.bytes // numpy_dtype(self.dtype).itemsize)
        if self.op in ("allreduce", "broadcast"):
            return elements
        return max(1, elements // self.ranks) * self.ranks

    @property
    def share(self) -> int:
        return self.count // self.ranks

    @property
    def actual_bytes(self) -> int:
        """`bytes`, rounded to what can be divided among the ranks."""
        return self.count * numpy_dtype(self.dtype).itemsize

    @property
    def bus_factor(self) -> float:
        """Bytes that must cross the busiest link for each byte of the problem, by the best algorithm."""
        share_of_others = (self.ranks - 1) / self.ranks
        return {"allreduce": 2 * share_of_others, "broadcast": 1.0}.get(self.op, share_of_others)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def input(self, rank: int) -> Array:
        """This rank's buffer, filled so that a wrong result shows."""
        if self.op == "alltoall":
            return self._blocks([rank * self.ranks + to for to in range(self.ranks)])
        count = self.share if self.op == "allgather" else self.count
        return np.full(count, rank + 1, numpy_dtype(self.dtype))

    def output(self) -> Array:
        """A buffer for the result of an operation that does not work in place."""
        count = self.share if self.op == "reducescatter" else self.count
        return np.zeros(count, numpy_dtype(self.dtype))

    def expected(self, rank: int) -> Array:
        """The right result. Its values are small integers or halves of them, which every type holds exactly."""
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
