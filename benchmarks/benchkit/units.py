# SPDX-License-Identifier: Apache-2.0
"""Sizes and times as text with three digits and a unit."""

from __future__ import annotations


def size_text(count: int) -> str:
    for unit, factor in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count} B"


def time_text(microseconds: float) -> str:
    for unit, factor in (("s", 1e6), ("ms", 1e3), ("µs", 1.0)):
        if microseconds >= factor:
            value = microseconds / factor
            return f"{value:.0f} {unit}" if value >= 99.5 else f"{value:.3g} {unit}"
    return f"{microseconds:.2g} µs"
