# SPDX-License-Identifier: Apache-2.0
"""Common parts of the benchmarks' pictures: header, footer, colours, and SVG that is equal for equal data."""

from __future__ import annotations

import io
import re

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, GREY, GRID = "#1f2328", "#656d76", "#e3e6e9"
# Okabe and Ito's colours, which colour-blind readers can distinguish.
OURS, THEIRS = "#d55e00", "#0072b2"
HEADER, FOOTER, MARGIN = 60, 30, 16  # pixels
# Text is stored as text, so that readers can search it and see it in their own fonts. Matplotlib measures it in the
# first font, which it includes; the others are not wider.
_RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Segoe UI", "Helvetica", "Arial", "sans-serif"],
    "svg.fonttype": "none",
    "svg.hashsalt": "khorovod",
}
_PIXELS_PER_INCH = 96


def points(pixels: float) -> float:
    """Return a length in points, the unit of fonts and lines."""
    return pixels * 72 / _PIXELS_PER_INCH


class Picture:
    """Figure measured in pixels from its upper left corner, with a title, a subtitle and a footer."""

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
        """Return axes without a frame in this rectangle."""
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
