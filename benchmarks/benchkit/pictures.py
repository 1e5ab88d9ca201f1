# SPDX-License-Identifier: Apache-2.0
"""What all pictures of the benchmarks have in common: header, footer, colours, and SVG that is the same every time."""

from __future__ import annotations

import io
import re

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, GREY, GRID = "#1f2328", "#656d76", "#e3e6e9"
# Okabe and Ito's colours, which colour-blind readers can tell apart.
OURS, THEIRS = "#d55e00", "#0072b2"
HEADER, FOOTER, MARGIN = 60, 30, 16  # pixels
# Text stays text: it can be searched, and the reader's own fonts show it. Matplotlib measures by the first of them,
# which it brings along; the others are no wider.
_RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Segoe UI", "Helvetica", "Arial", "sans-serif"],
    "svg.fonttype": "none",
    "svg.hashsalt": "khorovod",
}
_PIXELS_PER_INCH = 96


def points(pixels: float) -> float:
    """Sizes of fonts and lines are in points."""
    return pixels * 72 / _PIXELS_PER_INCH


class Picture:
    """A figure measured in pixels from its upper left corner, with a title, a line below it and one at the bottom."""

    def __init__(self, width: int, height: int, title: str, subtitle: str, footer: str) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / _PIXELS_PER_INCH, height / _PIXELS_PER_INCH), facecolor="white")
        self.text(MARGIN, 26, title, 17, weight="bold")
        self.text(MARGIN, 45, subtitle, 12, GREY)
        self.text(MARGIN, height - 10, footer, 11, GREY)

    def text(self, x: float, y: float, text: str, pixels: float, colour: str = INK, weight: str = "normal") -> None:
        place = (x / self.width, 1 - y / self.height)
        self.figure.text(*place, text, fontsize=points(pixels), color=colour, weight=weight)

    def axes(self, left: float, top: float, right: float, bottom: float) -> Axes:
        """Axes without a frame, in this rectangle."""
        size = ((right - left) / self.width, (bottom - top) / self.height)
        axes = self.figure.add_axes((left / self.width, 1 - bottom / self.height, *size))
        axes.spines[:].set_visible(False)
        axes.tick_params(colors=GREY, labelsize=points(11), width=points(1))
        return axes

    def svg(self) -> str:
        drawn = io.StringIO()
        with rc_context(_RC):
            self.figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
        return re.sub(r"[ \t]+$", "", drawn.getvalue(), flags=re.MULTILINE)
