# SPDX-License-Identifier: Apache-2.0
"""The page that the digits example writes: two curves, and the misread digits as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from digits_data import Digits
from digits_model import Network

_WIDTH, _HEIGHT, _MARGIN = 460, 220, 36

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Digits on {ranks} ranks</title>
<style>
 :root {{ color-scheme: light dark; --line: #3b6fd4 }}
 body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }}
 .row {{ display: flex; flex-wrap: wrap; gap: 1.5rem }} svg text {{ font-size: 11px; fill: currentColor }}
 figure {{ margin: 0; text-align: center }} .big {{ font-size: 2.4rem; font-weight: 600 }}
</style>
<h1>Reading digits on {ranks} rank(s)</h1>
<p><span class="big">{accuracy:.1%}</span> of {tested} test digits read correctly after {seconds:.1f} s.<br>{source}</p>
<div class="row">{loss_plot}{accuracy_plot}</div>
<h2>Misread: {wrong}</h2>
<div class="row">{misread}</div>
</html>
"""


def render(
    network: Network, data: Digits, loss: Sequence[float], accuracy: Sequence[float], ranks: int, seconds: float
) -> str:
    predicted = network.predict(data.test_images)
    wrong = np.flatnonzero(predicted != data.test_labels)
    shown = [digit(data.test_images[index], data.test_labels[index], predicted[index]) for index in wrong[:24]]
    return _PAGE.format(
        ranks=ranks,
        accuracy=accuracy[-1],
        tested=len(data.test_labels),
        seconds=seconds,
        source=data.source,
        loss_plot=curve("training loss", loss, "{:.2f}"),
        accuracy_plot=curve("test accuracy", accuracy, "{:.0%}"),
        wrong=len(wrong),
        misread="".join(shown) or "none",
    )


def curve(title: str, values: Sequence[float], label: str) -> str:
    """Return a line over epochs, with its lowest and highest value at the axis."""
    low, high = min(values), max(values)
    scale = (_HEIGHT - 2 * _MARGIN) / ((high - low) or 1.0)
    step = (_WIDTH - 2 * _MARGIN) / max(len(values) - 1, 1)
    points = " ".join(
        f"{_MARGIN + index * step:.1f},{_HEIGHT - _MARGIN - (value - low) * scale:.1f}"
        for index, value in enumerate(values)
    )
    bottom = _HEIGHT - _MARGIN
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{title} over epochs">'
        f'<path d="M{_MARGIN} {_MARGIN}V{bottom}H{_WIDTH - _MARGIN}" fill="none" stroke="currentColor" opacity=".4"/>'
        f'<polyline points="{points}" fill="none" stroke="var(--line)" stroke-width="2"/>'
        f'<text x="{_MARGIN}" y="20">{title}</text>'
        f'<text x="2" y="{_MARGIN + 4}">{label.format(high)}</text><text x="2" y="{bottom}">{label.format(low)}</text>'
        f'<text x="{_WIDTH - _MARGIN}" y="{bottom + 16}" text-anchor="end">epoch {len(values)}</text></svg>'
    )


def digit(image: npt.NDArray[Any], truth: int, predicted: int) -> str:
    """Return one digit in grey squares, with its label and the network's answer."""
    squares = "".join(
        f'<rect x="{index % 8 * 7}" y="{index // 8 * 7}" width="7" height="7" opacity="{pixel:.2f}"/>'
        for index, pixel in enumerate(image)
        if pixel > 0.02
    )
    return (
        f'<figure><svg width="56" height="56" fill="currentColor">{squares}</svg>'
        f"<figcaption>{truth} read as {predicted}</figcaption></figure>"
    )
