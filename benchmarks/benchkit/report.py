# SPDX-License-Identifier: Apache-2.0
"""Output of a run: JSON lines, a table for the terminal, and the curves as SVG."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchkit.measuring import Pace, Series
from benchkit.problem import Problem
from benchkit.summary import Ratio, figures, ratio
from benchkit.units import size_text, time_text

Record = dict[str, Any]
NO_PICTURE = "no picture: matplotlib is not installed"


class Report:
    """Results of a run. The first series is Khorovod's: all others are compared with it."""

    def __init__(self, output: Path, machine: Record, settings: Record, pace: Pace) -> None:
        output.mkdir(parents=True, exist_ok=True)
        self.lines_path = output / "collectives.jsonl"
        self.plot_path = output / "collectives.svg"
        self.lines_path.write_text("")
        self.records: list[Record] = []
        self._about = {"pace": asdict(pace), "settings": settings, "machine": machine}

    def add(self, problem: Problem, series: Sequence[Series], ours: str) -> list[Record]:
        """Return one record for each series; write them immediately, so that an interrupted run keeps its results."""
        own = next((one for one in series if one.label == ours), None)
        records = []
        for one in series:
            record: Record = {"op": problem.op, "bytes": problem.actual_bytes, "dtype": problem.dtype}
            record |= {"ranks": problem.ranks, "tensors": problem.tensors, "peer": one.label}
            record |= {"library": one.world.library, "transport": one.world.transport, "pinned": bool(one.world.cores)}
            record["idle_share"] = round(one.world.idle_share, 3)
            record |= figures(problem, one.rounds)
            if own is not None and own is not one:
                record["ours"] = ours
                record["ratio_to_ours"] = asdict(ratio(own.rounds, one.rounds))
            records.append(record)
        self.records += records
        with self.lines_path.open("a") as file:
            file.writelines(json.dumps(record | self._about) + "\n" for record in records)
        return records

    def print_tables(self, console: Console, ours: str) -> None:
        for op in _in_order(record["op"] for record in self.records):
            console.print(_table(op, [record for record in self.records if record["op"] == op], ours))
        for verdict in self._verdicts(ours):
            console.print(verdict)

    def save_plot(self, title: str, subtitle: str, footer: str) -> str:
        """Return the path of the picture, or why there is none."""
        if find_spec("matplotlib") is None:
            return NO_PICTURE
        from benchkit.curves import Panel, Point, draw

        panels = []
        for op in _in_order(record["op"] for record in self.records):
            curves: dict[str, list[Point]] = {}
            for record in self.records:
                if record["op"] == op:
                    point = Point(record["bytes"], record["median_us"], record["p10_us"], record["p90_us"])
                    curves.setdefault(record["peer"], []).append(point)
            panels.append(Panel(op, curves))
        if panels:
            self.plot_path.write_text(draw(title, subtitle, footer, panels), encoding="utf-8")
        return str(self.plot_path)

    def _verdicts(self, ours: str) -> list[Text]:
        # Do not compare with Khorovod's other APIs, which use the same engine.
        compared = [it for it in self.records if "ratio_to_ours" in it and not it["peer"].startswith(f"{ours},")]
        return [
            _verdict(ours, peer, [record for record in compared if record["peer"] == peer])
            for peer in _in_order(record["peer"] for record in compared)
        ]


def _verdict(ours: str, peer: str, records: list[Record]) -> Text:
    """Return how often Khorovod is faster or slower, and where it is slower; only differences beyond chance count."""
    slower = [record for record in records if record["ratio_to_ours"]["high"] < 1]
    faster = [record for record in records if record["ratio_to_ours"]["low"] > 1]
    verdict = Text(f"{ours} against {peer}: faster at {len(faster)} of {len(records)} points, slower at {len(slower)}")
    places = []
    for op in _in_order(record["op"] for record in slower):
        sizes = [size_text(record["bytes"]) for record in slower if record["op"] == op]
        places.append(f"{op} {', '.join(sizes)}")
    return verdict.append(f" ({'; '.join(places)})" if places else "")


def _table(op: str, records: list[Record], ours: str) -> Table:
    peers = _in_order(record["peer"] for record in records)
    table = Table(
        title=f"{op}: median time; how many times longer than {ours} (95 % interval)",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("size", justify="right", no_wrap=True)
    for peer in peers:
        table.add_column(peer, justify="right", no_wrap=True)
        if peer == ours:
            table.add_column("p99", justify="right", no_wrap=True)
            table.add_column("GB/s", justify="right", no_wrap=True)
        else:
            table.add_column("ratio", justify="left")
    for size in sorted({record["bytes"] for record in records}):
        row = {record["peer"]: record for record in records if record["bytes"] == size}
        cells: list[Text] = [Text(size_text(size))]
        for peer in peers:
            cells += _cells(row.get(peer), peer == ours)
        table.add_row(*cells)
    return table


def _cells(record: Record | None, is_ours: bool) -> list[Text]:
    if record is None:
        return [Text("-")] * (3 if is_ours else 2)
    median = Text(time_text(record["median_us"]), "bold" if is_ours else "")
    if is_ours:
        return [median, Text(time_text(record["p99_us"])), Text(f"{record['algbw_gbps']:.3g}")]
    if "ratio_to_ours" not in record:
        return [median, Text("-")]
    found = Ratio(**record["ratio_to_ours"])
    colour = "green" if found.low > 1 else "red" if found.high < 1 else "yellow"
    return [median, Text(f"{_short(found.value)} ({_short(found.low)}-{_short(found.high)})", colour)]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 99.5 else f"{value:.2f}" if 1 <= value < 10 else f"{value:.2g}"


def _in_order(values: Any) -> list[str]:
    return list(dict.fromkeys(values))
