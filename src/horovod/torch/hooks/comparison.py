# SPDX-License-Identifier: Apache-2.0
"""Comparison of the ranks' communication hooks and bucket layouts.

The code here is pure. A rank's first message of a round carries a checksum. Only if checksums differ do ranks exchange
their descriptions, to name the difference or to take over one rank's layout.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from horovod.torch.gradients.conversations import Questions
from horovod.torch.hooks.layout import BucketPlan, Layout, packed, unpacked

_LENGTH_BYTES = 4
_SHOWN_NAMES = 3
_SAME_EVERYWHERE = (
    "On every rank, use the same hook, or the same compression= of hvd.DistributedOptimizer(), with the same arguments."
)


class Side(NamedTuple):
    """Hook and layout of one rank; `hook` is the text that describes the hook, or None without one."""

    hook: str | None
    layout: Layout = ()
    is_settled: bool = False  # True if ranks have agreed on this layout before

    def checksum(self) -> int:
        """Return a checksum, which is 0 only without a hook."""
        if self.hook is None:
            return 0
        return zlib.crc32(packed(self.layout).encode(), zlib.crc32(self.hook.encode())) or 1

    def packed(self) -> bytes:
        return zlib.compress(json.dumps([self.hook, packed(self.layout), self.is_settled]).encode())

    @classmethod
    def unpacked(cls, text: bytes) -> Side:
        hook, layout, is_settled = json.loads(zlib.decompress(text))
        return cls(hook, unpacked(layout), is_settled)


def share(text: bytes, index: int, count: int) -> Questions[list[bytes]]:
    """Exchange one text per rank; it is empty for a rank that has joined. `index` is this rank's, of `count`."""
    length = len(text).to_bytes(_LENGTH_BYTES, "little")
    lengths = yield b"".join(length if it == index else bytes(_LENGTH_BYTES) for it in range(count))
    sizes = [int.from_bytes(lengths[it : it + _LENGTH_BYTES], "little") for it in range(0, len(lengths), _LENGTH_BYTES)]
    if not any(sizes):
        return [b""] * count
    texts = yield b"".join(text if it == index else bytes(size) for it, size in enumerate(sizes))
    starts = [sum(sizes[:it]) for it in range(count)]
    return [texts[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def layout_to_take_over(sides: Sequence[Side | None]) -> Layout | None:
    """Return the first rank's layout if all ranks can use it: equal hooks, no layout agreed on before; else None."""
    present = [side for side in sides if side is not None]
    if len({side.hook for side in present}) > 1 or any(side.is_settled for side in present):
        return None
    return present[0].layout


def difference(ranks: Sequence[int], sides: Sequence[Side | None]) -> str:
    """Describe the first difference between the ranks' hooks and layouts; a side is None if its rank has joined."""
    present = [(rank, side) for rank, side in zip(ranks, sides, strict=True) if side is not None]
    first_rank, first = present[0]
    for rank, side in present[1:]:
        if side.hook != first.hook:
            return (
                f"The ranks have different communication hooks: {_hook(first)} on rank {first_rank}, {_hook(side)} on "
                f"rank {rank}. {_SAME_EVERYWHERE}"
            )
    for rank, side in present[1:]:
        if side.layout != first.layout:
            return _layout_difference(first_rank, first.layout, rank, side.layout)
    return f"The ranks disagree about their communication hooks. {_SAME_EVERYWHERE}"


def _hook(side: Side) -> str:
    return "none" if side.hook is None else repr(side.hook)


def _layout_difference(one: int, mine: Layout, other: int, theirs: Layout) -> str:
    number = next(
        (it for it, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(map(len, (mine, theirs)))
    )
    return (
        f"The ranks have different buckets for the communication hook: bucket {number} holds {_shown(mine, number)} on "
        f"rank {one} and {_shown(theirs, number)} on rank {other}. Add and unfreeze the same parameters in the same "
        "order on every rank."
    )


def _shown(layout: Layout, number: int) -> str:
    if number >= len(layout):
        return "nothing"
    plan: BucketPlan = layout[number]
    names = ", ".join(map(repr, plan.names[:_SHOWN_NAMES]))
    more = len(plan.names) - _SHOWN_NAMES
    rest = f" and {more} more" if more > 0 else ""
    return f"{plan.elements} elements of {plan.dtype} on {plan.device}, of {names}{rest}"
