# SPDX-License-Identifier: Apache-2.0
"""A small SVG writer for this one kind of picture: log-log curves with bands, one panel for each collective."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

# Okabe and Ito's colours, which colour-blind readers can tell apart. A library has the same one in every picture.
_ORANGE, _DASHED = "#d55e00", "5 3"
_STYLES = {
    "khorovod": (_ORANGE, ""),
    "khorovod, address": (_ORANGE, _DASHED),
    "khorovod, shared": ("#e69f00", ""),
    "gloo": ("#0072b2", ""),
    "openmpi": ("#009e73", ""),
    "mpich": ("#cc79a7", ""),
    "floor": ("#656d76", _DASHED),
    "floor, shared": ("#a8adb3", _DASHED),
}
_OTHER_COLOURS = ("#56b4e9", "#000000", "#f0e442")
_WIDTH, _HEIGHT = 470, 330  # of one panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 34, 40
_HEADER, _LEGEND_ROW, _FOOTER = 52, 20, 24
_INK, _GREY, _GRID = "#1f2328", "#656d76", "#e3e6e9"


@dataclass(frozen=True)
class Point:
    """Bytes or ranks, and the time in microseconds: median, with the tenth and ninetieth percentile as a band."""

    x: int
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Panel:
    title: str
    curves: dict[str, list[Point]]  # by label
    unit: str = ""  # of x; bytes if none is given

    def x_text(self, x: int) -> str:
        return f"{x} {self.unit}" if self.unit else size_text(x)


def draw(title: str, subtitle: str, footer: str, panels: Sequence[Panel]) -> str:
    """The whole picture as SVG text."""
    labels = list(dict.fromkeys(label for panel in panels for label in panel.curves))
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    width, top = columns * _WIDTH, _HEADER + _LEGEND_ROW + 8
    height = top + rows * _HEIGHT + _FOOTER
    styles = _styles(labels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(16, 26, title, size=17, weight=600),
        _text(16, 45, subtitle, colour=_GREY),
        *_legend(styles),
    ]
    for number, panel in enumerate(panels):
        left, upper = number % columns * _WIDTH, top + number // columns * _HEIGHT
        parts += [f'<g transform="translate({left},{upper})">', *_panel(panel, styles), "</g>"]
    parts += [_text(16, height - 10, footer, colour=_GREY, size=11), "</svg>"]
    return "\n".join(parts) + "\n"


def _styles(labels: list[str]) -> dict[str, tuple[str, str]]:
    """Colour and dashes of each curve."""
    others = [label for label in labels if label not in _STYLES]
    free = {label: (_OTHER_COLOURS[i % len(_OTHER_COLOURS)], "") for i, label in enumerate(others)}
    return {label: (_STYLES | free)[label] for label in labels}


def _legend(styles: dict[str, tuple[str, str]]) -> list[str]:
    parts, x, y = [], 16.0, _HEADER + _LEGEND_ROW / 2
    for label, (colour, dash) in styles.items():
        parts.append(_line(x, y, x + 22, y, colour, 2.2, dash))
        parts.append(f'<circle cx="{x + 11:.1f}" cy="{y}" r="3" fill="{colour}"/>')
        parts.append(_text(x + 28, y + 4, label))
        x += 28 + 7 * len(label) + 22
    return parts


def _panel(panel: Panel, styles: dict[str, tuple[str, str]]) -> list[str]:
    points = [point for curve in panel.curves.values() for point in curve]
    sizes = sorted({point.x for point in points})
    x = _logarithmic(sizes[0], max(sizes[-1], sizes[0] * 2), _LEFT + 8, _WIDTH - _RIGHT - 8)
    lowest = 10 ** math.floor(math.log10(min(point.low for point in points)))
    highest = 10 ** math.ceil(math.log10(max(point.high for point in points) * 1.0001))
    y = _logarithmic(lowest, highest, _HEIGHT - _BOTTOM, _TOP)
    parts = [_text(_LEFT, 20, panel.title, size=13, weight=600), *_grid(panel, lowest, highest, x, y)]
    for label, curve in reversed(panel.curves.items()):  # ours last, on top
        parts += _curve(panel, sorted(curve, key=lambda point: point.x), styles[label], x, y)
    return parts


def _grid(
    panel: Panel, lowest: float, highest: float, x: Callable[[float], float], y: Callable[[float], float]
) -> list[str]:
    parts = []
    sizes = sorted({point.x for curve in panel.curves.values() for point in curve})
    for exponent in range(round(math.log10(lowest)), round(math.log10(highest)) + 1):
        value = 10.0**exponent
        parts.append(_line(_LEFT, y(value), _WIDTH - _RIGHT, y(value), _GRID, 1))
        parts.append(_text(_LEFT - 7, y(value) + 4, time_text(value), colour=_GREY, anchor="end", size=11))
    last = -math.inf
    for size in sizes:
        parts.append(_line(x(size), _HEIGHT - _BOTTOM, x(size), _HEIGHT - _BOTTOM + 4, _GREY, 1))
        if x(size) - last >= 44:
            last = x(size)
            parts.append(
                _text(x(size), _HEIGHT - _BOTTOM + 18, panel.x_text(size), colour=_GREY, anchor="middle", size=11)
            )
    parts.append(_line(_LEFT, _HEIGHT - _BOTTOM, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM, _GREY, 1))
    return parts


def _curve(
    panel: Panel,
    curve: list[Point],
    style: tuple[str, str],
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> list[str]:
    colour, dash = style
    upper = [(x(point.x), y(point.high)) for point in curve]
    lower = [(x(point.x), y(point.low)) for point in reversed(curve)]
    middle = [(x(point.x), y(point.median)) for point in curve]
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return [
        f'<polygon points="{_path(upper + lower)}" fill="{colour}" fill-opacity="0.13"/>',
        f'<polyline points="{_path(middle)}" fill="none" stroke="{colour}" stroke-width="2.2" '
        f'stroke-linejoin="round"{dashes}/>',
        *(
            f'<circle cx="{at:.1f}" cy="{height:.1f}" r="3" fill="{colour}">'
            f"<title>{panel.x_text(point.x)}: {_tip(point)}</title></circle>"
            for (at, height), point in zip(middle, curve, strict=True)
        ),
    ]


def _tip(point: Point) -> str:
    return f"{time_text(point.median)} ({time_text(point.low)} to {time_text(point.high)})"


def _logarithmic(start: float, end: float, pixel_start: float, pixel_end: float) -> Callable[[float], float]:
    span = math.log(end / start)
    return lambda value: pixel_start + (pixel_end - pixel_start) * math.log(value / start) / span


def _path(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"{dashes}/>'


def _text(
    x: float, y: float, text: str, *, colour: str = _INK, anchor: str = "start", size: int = 12, weight: int = 400
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


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
