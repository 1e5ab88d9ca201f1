# SPDX-License-Identifier: Apache-2.0
"""Plots of times by size or by ranks: log-log curves with bands, one panel for each collective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from benchkit.pictures import FOOTER, GREY, GRID, HEADER, INK, MARGIN, OURS, THEIRS, Picture, points
from benchkit.units import size_text, time_text

# A library has one style in all pictures.
_DASHED = (0, (4, 2.5))
_STYLES = {
    "khorovod": (OURS, "-"),
    "khorovod, address": (OURS, _DASHED),
    "khorovod, shared": ("#e69f00", "-"),
    "gloo": (THEIRS, "-"),
    "openmpi": ("#009e73", "-"),
    "mpich": ("#cc79a7", "-"),
    "floor": (GREY, _DASHED),
    "floor, shared": ("#a8adb3", _DASHED),
}
_OTHER_COLOURS = ("#56b4e9", "#000000", "#f0e442")
_WIDTH, _HEIGHT = 470, 330  # size of one panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 26, 34, 40
_LEGEND_ROW, _ENTRIES_IN_A_ROW = 24, {1: 3, 2: 8}  # entries of the legend by columns of panels
_LABEL_ROOM = 46  # minimum distance in pixels between labels of x

Style = tuple[str, object]  # colour and dashes


@dataclass(frozen=True)
class Point:
    """Point of a curve: bytes or ranks, and microseconds with the tenth and ninetieth percentile as a band."""

    x: int
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Panel:
    title: str
    curves: dict[str, list[Point]]  # curves by label
    unit: str = ""  # unit of x; bytes if empty

    def x_text(self, x: int) -> str:
        return f"{x} {self.unit}" if self.unit else size_text(x)


def draw(title: str, subtitle: str, footer: str, panels: Sequence[Panel]) -> str:
    """Return the whole picture as SVG text."""
    styles = _styles(list(dict.fromkeys(label for panel in panels for label in panel.curves)))
    columns = min(2, len(panels))
    in_a_row = _ENTRIES_IN_A_ROW[columns]
    top = HEADER + _LEGEND_ROW * math.ceil(len(styles) / in_a_row)
    height = top + _HEIGHT * math.ceil(len(panels) / columns) + FOOTER
    picture = Picture(columns * _WIDTH, height, title, subtitle, footer)
    _legend(picture, styles, in_a_row)
    for number, panel in enumerate(panels):
        left, upper = number % columns * _WIDTH, top + number // columns * _HEIGHT
        picture.text(left + _LEFT, upper + 20, panel.title, 13, weight="bold")
        axes = picture.axes(left + _LEFT, upper + _TOP, left + _WIDTH - _RIGHT, upper + _HEIGHT - _BOTTOM)
        _draw_panel(axes, panel, styles)
    return picture.svg()


def _styles(labels: list[str]) -> dict[str, Style]:
    others = [label for label in labels if label not in _STYLES]
    free = {label: (_OTHER_COLOURS[i % len(_OTHER_COLOURS)], "-") for i, label in enumerate(others)}
    return {label: (_STYLES | free)[label] for label in labels}


def _legend(picture: Picture, styles: dict[str, Style], in_a_row: int) -> None:
    samples = [Line2D([], [], **_line(style)) for style in styles.values()]
    picture.figure.legend(
        samples,
        list(styles),
        loc="upper left",
        bbox_to_anchor=(MARGIN / picture.width, 1 - HEADER / picture.height),
        ncols=in_a_row,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        columnspacing=1.1,
        handletextpad=0.5,
        handlelength=2.7,
        fontsize=points(12),
        labelcolor=INK,
    )


def _line(style: Style) -> dict[str, object]:
    colour, dashes = style
    return {"color": colour, "linestyle": dashes, "linewidth": points(2.2), "marker": "o", "markersize": points(6)}


def _draw_panel(axes: Axes, panel: Panel, styles: dict[str, Style]) -> None:
    everything = [point for curve in panel.curves.values() for point in curve]
    _scale(axes, panel, everything)
    for label, curve in reversed(panel.curves.items()):  # draws Khorovod's curves last, so that they are on top
        in_order = sorted(curve, key=lambda point: point.x)
        x = [point.x for point in in_order]
        lows, highs = [point.low for point in in_order], [point.high for point in in_order]
        axes.fill_between(x, lows, highs, color=styles[label][0], alpha=0.13, linewidth=0)
        axes.plot(x, [point.median for point in in_order], clip_on=False, **_line(styles[label]))


def _scale(axes: Axes, panel: Panel, everything: list[Point]) -> None:
    """Scale time to whole decades, and mark every measured x; label the marks for which there is room."""
    axes.set(xscale="log", yscale="log")
    axes.minorticks_off()
    lowest = math.floor(math.log10(min(point.low for point in everything)))
    highest = math.ceil(math.log10(max(point.high for point in everything) * 1.0001))
    decades = [10.0**exponent for exponent in range(lowest, highest + 1)]
    axes.set_ylim(decades[0], decades[-1])
    axes.set_yticks(decades, [time_text(value) for value in decades])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color=GRID, linewidth=points(1))
    axes.set_axisbelow(True)
    sizes = sorted({point.x for point in everything})
    span = math.log(max(sizes[-1] / sizes[0], 2))
    edge = span * 8 / (_WIDTH - _LEFT - _RIGHT - 16)
    axes.set_xlim(sizes[0] * math.exp(-edge), sizes[0] * math.exp(span + edge))
    axes.set_xticks(sizes, _labels(panel, sizes, (_WIDTH - _LEFT - _RIGHT - 16) / span))
    axes.spines["bottom"].set(visible=True, color=GREY, linewidth=points(1))


def _labels(panel: Panel, sizes: list[int], pixels: float) -> list[str]:
    """Return the labels of x; `pixels` is the length of one unit of the logarithm."""
    labels, last = [], -math.inf
    for size in sizes:
        here = math.log(size) * pixels
        shown = here - last >= _LABEL_ROOM
        labels.append(panel.x_text(size) if shown else "")
        last = here if shown else last
    return labels
