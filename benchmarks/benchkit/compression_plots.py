# SPDX-License-Identifier: Apache-2.0
"""Plots of docs/compression.md: what the exchange adds to a step, and its time by bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes

from benchkit import bars
from benchkit.compression_results import Record, links, of_part
from benchkit.crossover import Exchange, bandwidth_text
from benchkit.pictures import FOOTER, GREY, GRID, HEADER, INK, MARGIN, Picture, points
from benchkit.units import time_text

_WIDTH, _HEIGHT = 760, 380  # size of the axes with their labels
_LEFT, _RIGHT, _BOTTOM, _LEGEND = 72, 40, 40, 48
_BANDWIDTHS = [1e7, 3e7, 1e8, 3e8, 1e9, 3e9, 1e10, 3e10]
_DASHED = (0, (4, 2.5))
# Okabe and Ito's colours, which colour-blind readers can distinguish.
_STYLES = {
    "dense": (INK, "-"),
    "fp16": ("#0072b2", "-"),
    "bf16": ("#56b4e9", _DASHED),
    "int8": ("#d55e00", "-"),
    "onebit": ("#009e73", "-"),
    "topk(0.01)": ("#cc79a7", "-"),
    "powersgd(4)": ("#e69f00", "-"),
}


def added(records: Sequence[Record], footer: str) -> str:
    """Draw bars of what each way adds to a step without exchange, in one group for each link."""
    groups: dict[str, list[bars.Bar]] = {}
    for link in links(records):
        groups[link] = [
            bars.Bar(
                record["way"],
                *(1e6 * record["above_s"][name] for name in ("value", "low", "high")),
                note=f" ({record['host_bytes'] / 1e6:.3g} MB)",
            )
            for record in of_part(records, "slow links", link=link)
            if "above_s" in record
        ]
    subtitle = "intervals as in the tables; MB that a host sends in a step in brackets; shorter is better"
    return bars.draw("What the exchange adds to a training step", subtitle, footer, groups)


def by_bandwidth(records: Sequence[Record], models: Sequence[Exchange], footer: str) -> str:
    """Draw the time of the exchange at any bandwidth: lines for the model, points for measurements."""
    top = HEADER + _LEGEND
    title, subtitle = "What the exchange takes, by bandwidth", "lines: fixed time + bytes / bandwidth; points: measured"
    picture = Picture(_WIDTH, top + _HEIGHT + FOOTER, title, subtitle, footer)
    axes = picture.axes(_LEFT, top, _WIDTH - _RIGHT, top + _HEIGHT - _BOTTOM)
    _scale(axes, [model.seconds(bits) for model in models for bits in (_BANDWIDTHS[0], _BANDWIDTHS[-1])])
    for model in models:
        label = model.name.partition(", ")[2]
        colour, dashes = _STYLES.get(label, (GREY, "-"))
        style = {"color": colour, "linestyle": dashes, "linewidth": points(2.2)}
        finer = [low * (high / low) ** (step / 8) for low, high in pairwise(_BANDWIDTHS) for step in range(9)]
        axes.plot(finer, [model.seconds(bits) for bits in finer], label=label, **style)
        measured = [
            (facts["bits_per_s"], record["above_s"]["value"])
            for link, facts in links(records).items()
            for record in of_part(records, "slow links", link=link, way=model.name)
        ]
        axes.plot(*zip(*measured, strict=True), color=colour, linestyle="", marker="o", markersize=points(7))
    picture.figure.legend(
        *axes.get_legend_handles_labels(),
        loc="upper left",
        bbox_to_anchor=(MARGIN / picture.width, 1 - HEADER / picture.height),
        ncols=7,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        columnspacing=1.1,
        handletextpad=0.5,
        fontsize=points(12),
        labelcolor=INK,
    )
    return picture.svg()


def _scale(axes: Axes, seconds: Sequence[float]) -> None:
    axes.set(xscale="log", yscale="log", xlim=(_BANDWIDTHS[0], _BANDWIDTHS[-1]))
    axes.minorticks_off()
    axes.set_xticks(_BANDWIDTHS, [bandwidth_text(bits) for bits in _BANDWIDTHS])
    low, high = 1.0, 1.0
    while low > min(seconds):
        low /= 10
    while high < max(seconds):
        high *= 10
    decades = [low]
    while decades[-1] < high:
        decades.append(decades[-1] * 10)
    axes.set_ylim(low, high)
    axes.set_yticks(decades, [time_text(1e6 * value) for value in decades])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color=GRID, linewidth=points(1))
    axes.set_axisbelow(True)
    axes.spines["bottom"].set(visible=True, color=GREY, linewidth=points(1))
