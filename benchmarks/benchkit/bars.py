# SPDX-License-Identifier: Apache-2.0
"""Plots of costs: bars with intervals, one group for each workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchkit.pictures import FOOTER, GREY, GRID, HEADER, INK, MARGIN, OURS, THEIRS, Picture, points
from benchkit.units import time_text

_WIDTH, _LEFT, _RIGHT = 760, 200, 150
_ROW, _TITLE = 26, 38


@dataclass(frozen=True)
class Bar:
    """Bar of a plot: microseconds, with the interval that contains the true value with 95 % confidence."""

    label: str
    value: float
    low: float
    high: float
    note: str

    @property
    def colour(self) -> str:
        return OURS if self.label.startswith("khorovod") else THEIRS


def draw(title: str, subtitle: str, footer: str, groups: Mapping[str, Sequence[Bar]]) -> str:
    """Return the whole picture as SVG text. Every group has its own scale."""
    height = HEADER + sum(_TITLE + _ROW * len(bars) for bars in groups.values()) + FOOTER
    picture = Picture(_WIDTH, height, title, subtitle, footer)
    top = HEADER
    for name, bars in groups.items():
        picture.text(MARGIN, top + 22, name, 13, weight="bold")
        _draw_group(picture, bars, top + _TITLE - 6)
        top += _TITLE + _ROW * len(bars)
    return picture.svg()


def _draw_group(picture: Picture, bars: Sequence[Bar], top: int) -> None:
    axes = picture.axes(_LEFT, top, _WIDTH - _RIGHT, top + _ROW * len(bars))
    axes.set_xlim(0, max([bar.high for bar in bars] + [1e-3]))
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars], fontsize=points(12), color=INK)
    axes.tick_params(axis="y", length=0, pad=points(10))
    axes.spines["left"].set(visible=True, color=GRID, linewidth=points(1))
    for row, bar in enumerate(bars):
        low, value, high = (max(0.0, one) for one in (bar.low, bar.value, bar.high))
        axes.barh(row, value, height=16 / _ROW, color=bar.colour, alpha=0.75)
        axes.plot([low, high], [row, row], color=INK, linewidth=points(1.4), solid_capstyle="butt", clip_on=False)
        axes.annotate(
            f"{time_text(value)}{bar.note}",
            (high, row),
            xytext=(points(8), 0),
            textcoords="offset points",
            va="center",
            fontsize=points(11),
            color=GREY,
            annotation_clip=False,
        )
