# SPDX-License-Identifier: Apache-2.0
"""A small SVG writer for bars with intervals, one group of them for each workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchkit.svg import _GREY, _GRID, _line, _text, time_text

_WIDTH, _LEFT, _RIGHT = 760, 190, 150
_HEADER, _ROW, _TITLE, _FOOTER = 60, 26, 38, 30


@dataclass(frozen=True)
class Bar:
    """Microseconds, with the interval that holds the true value with 95 % confidence."""

    label: str
    value: float
    low: float
    high: float
    note: str

    @property
    def colour(self) -> str:
        return "#d55e00" if self.label.startswith("khorovod") else "#0072b2"


def draw(title: str, subtitle: str, footer: str, groups: Mapping[str, Sequence[Bar]]) -> str:
    """The whole picture as SVG text. Every group has a scale of its own."""
    height = _HEADER + sum(_TITLE + _ROW * len(bars) for bars in groups.values()) + _FOOTER
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(16, 26, title, size=17, weight=600),
        _text(16, 45, subtitle, colour=_GREY),
    ]
    top = float(_HEADER)
    for name, bars in groups.items():
        parts += _group(name, bars, top)
        top += _TITLE + _ROW * len(bars)
    parts += [_text(16, height - 10, footer, colour=_GREY, size=11), "</svg>"]
    return "\n".join(parts) + "\n"


def _group(name: str, bars: Sequence[Bar], top: float) -> list[str]:
    highest = max([bar.high for bar in bars] + [1e-3])
    room = _WIDTH - _LEFT - _RIGHT
    parts = [_text(16, top + 22, name, size=13, weight=600)]
    parts.append(_line(_LEFT, top + _TITLE - 6, _LEFT, top + _TITLE + _ROW * len(bars) - 6, _GRID, 1))
    for number, bar in enumerate(bars):
        middle = top + _TITLE + _ROW * number + 6
        low, value, high = (_LEFT + room * max(0.0, one) / highest for one in (bar.low, bar.value, bar.high))
        parts += [
            _text(_LEFT - 10, middle + 4, bar.label, anchor="end"),
            f'<rect x="{_LEFT}" y="{middle - 8:.1f}" width="{value - _LEFT:.1f}" height="16" fill="{bar.colour}" '
            'fill-opacity="0.75"/>',
            _line(low, middle, high, middle, "#1f2328", 1.4),
            _text(high + 8, middle + 4, f"{time_text(max(0.0, bar.value))}{bar.note}", colour=_GREY, size=11),
        ]
    return parts
