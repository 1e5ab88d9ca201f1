# SPDX-License-Identifier: Apache-2.0
"""Assignment of gradients to the buckets of a communication hook.

The code here is pure: it uses names and sizes, but no tensor. Existing buckets never change: parameters that are added
later get new buckets. Ranks compare the checksums of their layouts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

DEFAULT_BYTES = 25 * 1024 * 1024
_NO_LIMIT = 1 << 62


class Described(NamedTuple):
    """Properties of a parameter that determine its bucket."""

    name: str
    elements: int
    item_bytes: int
    dtype: str
    device: str  # type of the device, such as "cuda", because ranks number their devices differently
    place: str = ""  # the device itself; it separates buckets, but ranks do not compare it

    @property
    def kind(self) -> tuple[str, str, str]:
        """Properties that all parameters of a bucket have in common."""
        return self.dtype, self.device, self.place

    @property
    def nbytes(self) -> int:
        return self.elements * self.item_bytes


class BucketPlan(NamedTuple):
    """Parameters of one bucket, in the order of their gradients in the flat tensor."""

    dtype: str
    device: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]  # number of elements of each parameter

    @property
    def elements(self) -> int:
        return sum(self.sizes)


Layout = tuple[BucketPlan, ...]


def make_layout(
    parameters: Sequence[Described], groups: Iterable[Sequence[str]] = (), limit_bytes: int = DEFAULT_BYTES
) -> Layout:
    """Return the buckets of parameters given in registration order.

    Each of the user's `groups` becomes one bucket, or several if its dtypes or devices differ. All other parameters
    fill buckets in reverse order, because backward() usually computes the gradients of the last ones first. A bucket
    is closed before it exceeds `limit_bytes`; a larger parameter has a bucket for itself.
    """
    by_name = {it.name: it for it in parameters}
    buckets: list[list[Described]] = []
    for group in groups:
        buckets += _fill((by_name[name] for name in group if name in by_name), _NO_LIMIT)
    grouped = {it.name for bucket in buckets for it in bucket}
    buckets += _fill((it for it in reversed(parameters) if it.name not in grouped), limit_bytes)
    return tuple(_plan(bucket) for bucket in buckets)


def append_buckets(layout: Layout, parameters: Sequence[Described], limit_bytes: int = DEFAULT_BYTES) -> Layout:
    """Return the layout with new buckets for those of the parameters that are in none."""
    known = placed(layout)
    return layout + make_layout([it for it in parameters if it.name not in known], (), limit_bytes)


def placed(layout: Layout) -> set[str]:
    """Return the names of all parameters that are in a bucket."""
    return {name for plan in layout for name in plan.names}


def packed(layout: Layout) -> str:
    """Return the layout as a text; equal layouts give equal texts."""
    return json.dumps([[*plan[:2], list(plan.names), list(plan.sizes)] for plan in layout], separators=(",", ":"))


def unpacked(text: str) -> Layout:
    """Return the layout that a text describes."""
    return tuple(
        BucketPlan(dtype, device, tuple(names), tuple(sizes)) for dtype, device, names, sizes in json.loads(text)
    )


def _fill(parameters: Iterable[Described], limit_bytes: int) -> list[list[Described]]:
    buckets: list[list[Described]] = []
    filling: dict[tuple[str, str, str], tuple[list[Described], int]] = {}  # each kind's open bucket and its bytes
    for parameter in parameters:
        bucket, nbytes = filling.get(parameter.kind, ([], 0))
        if bucket and nbytes + parameter.nbytes > limit_bytes:
            bucket, nbytes = [], 0
        if not bucket:
            buckets.append(bucket)
        bucket.append(parameter)
        filling[parameter.kind] = bucket, nbytes + parameter.nbytes
    return buckets


def _plan(bucket: Sequence[Described]) -> BucketPlan:
    first = bucket[0]
    return BucketPlan(first.dtype, first.device, tuple(it.name for it in bucket), tuple(it.elements for it in bucket))
