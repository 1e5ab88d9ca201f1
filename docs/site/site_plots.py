# SPDX-License-Identifier: Apache-2.0
"""Plots of the site: each SVG has a variant for dark pages, made by replacing its colours when the site is built."""

from __future__ import annotations

import re
from pathlib import Path

_SUFFIX = "-dark.svg"
# Colours of benchmarks and matplotlib, and what they are on a dark page. Others are bright enough on both.
_COLOURS = {
    "#ffffff": "none",
    "#000000": "#e6e8eb",
    "#1f2328": "#d7dde3",
    "#656d76": "#9aa4ae",
    "#a8adb3": "#7d858d",
    "#b0b0b0": "#565c63",
    "#cccccc": "#565c63",
    "#e3e6e9": "#3a4047",
    "#0072b2": "#3d9fe0",
    "#d55e00": "#f0792b",
    "#009e73": "#1fbf92",
}
_COLOUR = re.compile("|".join(_COLOURS), re.IGNORECASE)
_TEXT = f'<style>text:not([style*="fill"]) {{ fill: {_COLOURS["#000000"]} }}</style>'
_PLOT = re.compile(r"^!\[([^\]]*)\]\(((?!(?:\.\./)*drawings/)[^)\s:]+)\.svg\)$", re.MULTILINE)
_IMAGE = "```{{image}} {file}\n:alt: {text}\n:class: {shown}\n```"


def dark(svg: str) -> str:
    """Return a plot in the colours of a dark page."""
    recoloured = _COLOUR.sub(lambda found: _COLOURS[found[0].lower()], svg)
    return re.sub(r"(<svg\b[^>]*>)", lambda found: found[1] + _TEXT, recoloured, count=1)


def write_dark_plots(folder: Path) -> None:
    """Write the dark variant of every plot in a folder beside it. Drawings, which follow the theme, are left out."""
    for path in folder.glob("*.svg"):
        if not path.name.endswith(_SUFFIX):
            target = path.with_name(path.stem + _SUFFIX)
            target.write_text(dark(path.read_text(encoding="utf-8")), encoding="utf-8")


def both_variants(page: str) -> str:
    """Return a page that shows each plot as an image for light pages and an image for dark pages."""

    def images(found: re.Match[str]) -> str:
        light = _IMAGE.format(file=f"{found[2]}.svg", text=found[1], shown="only-light")
        return light + "\n\n" + _IMAGE.format(file=found[2] + _SUFFIX, text=found[1], shown="only-dark")

    return _PLOT.sub(images, page)
