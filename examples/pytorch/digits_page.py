# SPDX-License-Identifier: Apache-2.0
"""The page that the digits example writes: the result, curves as inline SVG, and a table row for each run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median

from digits_report import Run, compare, counted

_WIDTH, _HEIGHT = 400, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 12, 34
# CSS classes of the lines: training and validation of this run, then of the earlier one.
_STYLES = (("a", "b"), ("c earlier", "d earlier"))

Curve = tuple[str, str, Sequence[float]]  # name, CSS class, and a value for each epoch

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Digits on {ranks}</title>
<style>
:root {{ color-scheme: light dark; --back: #fff; --text: #1f2328; --soft: #59636e; --line: #d1d9e0; --a: #0072b2;
  --b: #c2410c; --c: #3f9fd6; --d: #b7791f }}
@media (prefers-color-scheme: dark) {{ :root {{ --back: #14181d; --text: #e6edf3; --soft: #9aa4af; --line: #39424c;
  --a: #58a6ff; --b: #ff8c5a; --c: #9bd0ff; --d: #e3b341 }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 54rem;
  margin: 1.5rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.5rem; margin: 0 }} b {{ font-size: 2.4rem }} small, figcaption {{ color: var(--soft) }}
.plots {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 1rem }}
figure {{ margin: 0 }} svg {{ width: 100%; height: auto; display: block }}
svg text {{ font-size: 12px; fill: var(--soft) }} .grid {{ stroke: var(--line); fill: none }}
.plot {{ fill: none; stroke-width: 2 }} .earlier {{ stroke-dasharray: 5 4 }}
.a {{ stroke: var(--a) }} .b {{ stroke: var(--b) }} .c {{ stroke: var(--c) }} .d {{ stroke: var(--d) }}
.key {{ display: inline-block; width: 1.4rem; height: 0; border-top: 3px solid; vertical-align: middle;
  margin: 0 .3rem }}
.key.earlier {{ border-top-style: dashed }} .key.a {{ border-color: var(--a) }} .key.b {{ border-color: var(--b) }}
.key.c {{ border-color: var(--c) }} .key.d {{ border-color: var(--d) }} figcaption span {{ white-space: nowrap }}
table {{ border-collapse: collapse; width: 100%; font-size: .9rem; margin-top: 1rem }}
th, td {{ text-align: right; padding: .3rem .2rem; border-bottom: 1px solid var(--line) }}
th:first-child, td:first-child {{ text-align: left }}
</style>
<h1>Reading digits on {ranks}</h1>
<p><b>{accuracy:.1%}</b> of the validation digits are read correctly after {epochs} epochs.</p>
<div class="plots">{loss}{accuracies}</div>
{table}
<p><small>{notes}</small></p></html>
"""


def save_page(path: Path, run: Run, earlier: Run | None) -> None:
    """Write the page of a run, and compare it with an earlier run if there is one."""
    runs = [one for one in (run, earlier) if one is not None]
    losses: list[Curve] = []
    accuracies: list[Curve] = []
    for one, (training, validation) in zip(runs, _STYLES, strict=False):
        losses.append((f"training, {counted(one.ranks)}", training, one.train_losses))
        losses.append((f"validation, {counted(one.ranks)}", validation, one.losses))
        accuracies.append((f"validation, {counted(one.ranks)}", validation, one.accuracies))
    notes = [f"{line[0].upper()}{line[1:]}." for line in compare(run, earlier).splitlines() if "times" in line]
    page = _PAGE.format(
        ranks=counted(run.ranks),
        accuracy=run.accuracies[-1],
        epochs=len(run.losses),
        loss=_figure("Loss (logarithmic)", losses, logarithmic=True),
        accuracies=_figure("Accuracy", accuracies),
        table=_table(list(reversed(runs))),
        notes=" ".join(escape(line) for line in notes),
    )
    path.write_text(page, encoding="utf-8")


def _table(runs: Sequence[Run]) -> str:
    rows = ["<tr><th>run<th>s/epoch<th>samples/s<th>loss<th>accuracy</tr>"]
    for one in runs:
        seconds = median(one.epoch_seconds) if one.epoch_seconds else 0.0
        cells = [
            f"{seconds:.2f}",
            f"{one.samples_per_second:.0f}",
            f"{one.losses[-1]:.4f}",
            f"{one.accuracies[-1]:.2%}",
        ]
        rows.append(f"<tr><td>{counted(one.ranks)}{''.join(f'<td>{cell}' for cell in cells)}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _figure(title: str, curves: Sequence[Curve], *, logarithmic: bool = False) -> str:
    """Return a plot over epochs with its caption: of shares from 0 to 1, or of any values on a logarithmic scale."""
    values = [value for *_, ones in curves for value in ones]
    low, high = min(values), max(values)
    epochs = max(len(ones) for *_, ones in curves)

    def x(epoch: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (epoch - 1) / max(epochs - 1, 1)

    def y(value: float) -> float:
        share = math.log(value / low) / (math.log(high / low) or 1.0) if logarithmic else value
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share

    parts = [
        f'<path class="grid" d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/>',
        f'<text x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 2}" text-anchor="middle">epoch</text>',
    ]
    for epoch in sorted({1, (epochs + 1) // 2, epochs}):
        parts.append(f'<text x="{x(epoch):.1f}" y="{_HEIGHT - 18}" text-anchor="middle">{epoch}</text>')
    for tick in _ticks(low, high) if logarithmic else [0.0, 0.5, 1.0]:
        shown = f"{tick:g}" if logarithmic else f"{tick:.0%}"
        parts.append(f'<path class="grid" stroke-opacity=".5" d="M{_LEFT} {y(tick):.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{shown}</text>')
    keys = []
    for name, style, ones in curves:
        points = " ".join(f"{x(epoch):.1f},{y(value):.1f}" for epoch, value in enumerate(ones, start=1))
        parts.append(f'<polyline class="plot {style}" points="{points}"/>')
        keys.append(f'<span><i class="key {style}"></i>{name}</span>')
    drawing = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title} over epochs">{"".join(parts)}</svg>'
    )
    return f"<figure>{drawing}<figcaption>{title}: {' '.join(keys)}</figcaption></figure>"


def _ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten between two values, and the values themselves if there are fewer than two."""
    found = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    return found if len(found) > 1 else [float(f"{low:.2g}"), float(f"{high:.2g}")]
