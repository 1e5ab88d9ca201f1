# SPDX-License-Identifier: Apache-2.0
"""Tables of benchmarks/diloco.py, and the comparison of its results with their targets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from benchkit.diloco_ways import AVERAGING, FP32, INT4, SYNCHRONOUS, WAYS
from benchkit.tables import markdown

Record = dict[str, Any]
MAX_LOSS_ABOVE = 0.02  # a fraction of the synchronous loss
MIN_TIMES_FEWER = {FP32.name: 49.0, INT4.name: 300.0}


def by_way(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of each way, in the order of the ways."""
    found: dict[str, list[Record]] = {}
    for way in WAYS:
        if own := [record for record in records if record["way"] == way.name]:
            found[way.name] = own
    return found


def times_fewer(records: Sequence[Record], way: str) -> float | None:
    """Return how many times fewer data bytes a way sends than synchronous training; None if that was not counted."""
    ways = by_way(records)
    if not all(ways.get(name, [{}])[0].get("data_bytes_sent") for name in (way, SYNCHRONOUS.name)):
        return None
    of_step = {name: mean(it["data_bytes_sent"] / it["steps"] for it in ways[name]) for name in (way, SYNCHRONOUS.name)}
    return of_step[SYNCHRONOUS.name] / of_step[way]


def table(records: Sequence[Record]) -> list[str]:
    """Return a row for each way: its loss, its bytes and its speed."""
    ways = by_way(records)
    synchronous = mean(it["loss"] for it in ways[SYNCHRONOUS.name]) if SYNCHRONOUS.name in ways else None
    rows = []
    for name, own in ways.items():
        loss = mean(it["loss"] for it in own)
        above = f"{loss / synchronous - 1:+.1%}" if synchronous else ""
        fewer = times_fewer(records, name)
        sent = mean(it.get("data_bytes_sent", 0) for it in own)
        rows.append(
            [
                name,
                f"{loss:.4f}",
                above,
                ", ".join(f"{it['loss']:.4f}" for it in sorted(own, key=lambda it: it["seed"])),
                f"{sent / 1e6:.1f} MB" if sent else "",
                f"{fewer:.1f} x" if fewer else "",
                f"{mean(it['tokens_per_s'] for it in own):,.0f}",
            ]
        )
    headings = ["way", "loss", "to synchronous", "each seed", "data sent by a worker", "fewer", "tokens/s"]
    return markdown(headings, rows)


def slow_table(records: Sequence[Record]) -> list[str]:
    """Return a row for each way over a slow link: its speed and what the host's interface sends for a step."""
    ways = by_way([record for record in records if record.get("part") != "loss"])
    dense = mean(it["tokens_per_s"] for it in ways[SYNCHRONOUS.name]) if SYNCHRONOUS.name in ways else None
    rows = []
    for name, own in ways.items():
        speed = mean(it["tokens_per_s"] for it in own)
        sent = mean(it["interface_bytes"] / it["steps"] for it in own)
        rows.append([name, f"{speed:,.0f}", f"{speed / dense:.1f} x" if dense else "", f"{sent / 1e3:,.0f} KB"])
    lines = markdown(["way", "tokens/s", "to synchronous", "sent by a host for each step"], rows)
    lost = [
        [
            it["way"],
            f"{it['tokens_per_s']:,.0f}",
            f"{it['tokens_per_s_with_loss']:,.0f}",
            f"{it['longest_pause_s']:.1f} s",
            f"{it['joined_after_s']:.1f} s",
        ]
        for it in records
        if it.get("part") == "loss"
    ]
    headings = ["elastic job", "tokens/s", "one killed, one joining", "longest pause", "new worker trains after"]
    return [*lines, *(["", *markdown(headings, lost)] if lost else [])]


def verdicts(records: Sequence[Record]) -> list[str]:
    """Return a line for each target of the first mode: whether it is met, with the value."""
    ways = by_way(records)
    losses = {name: mean(it["loss"] for it in own) for name, own in ways.items()}
    lines = []
    for name in (FP32.name, INT4.name):
        if name in losses and SYNCHRONOUS.name in losses:
            above = losses[name] / losses[SYNCHRONOUS.name] - 1
            lines.append(_verdict(above <= MAX_LOSS_ABOVE, f"{name}: loss {above:+.2%} to synchronous, at most +2 %"))
        if name in losses and AVERAGING.name in losses:
            text = f"{name}: loss {losses[name]:.4f}, plain averaging {losses[AVERAGING.name]:.4f}"
            lines.append(_verdict(losses[name] < losses[AVERAGING.name], text))
        fewer = times_fewer(records, name)
        if fewer is not None:
            lines.append(_verdict(fewer >= MIN_TIMES_FEWER[name], f"{name}: {fewer:.1f} x fewer data bytes"))
    return lines


def _verdict(is_met: bool, text: str) -> str:
    return f"{'met' if is_met else 'MISSED'}: {text}"
