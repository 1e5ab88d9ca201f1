# SPDX-License-Identifier: Apache-2.0
"""Byte counters of a process: each world counts its own bytes, and this module adds up all worlds of the process."""

from __future__ import annotations

import json

# A counter is None if MPI or NCCL moved tensors, because the engine cannot know how many bytes that took.
Counters = dict[str, int | None]


def counted_by(description: str) -> Counters:
    """Return the byte counters of one world from the text of World.describe()."""
    counters: Counters = json.loads(description)["counters"]
    return counters


def total(earlier: Counters, latest: Counters) -> Counters:
    """Return the sums of two worlds' counters. A sum is None if one of its summands is None."""
    return {name: _sum(earlier.get(name, 0), latest[name]) for name in latest}


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second
