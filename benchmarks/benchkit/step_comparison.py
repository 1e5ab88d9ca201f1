# SPDX-License-Identifier: Apache-2.0
"""Comparison of a training step between teams of ranks that take turns: the first sends nothing, the last is the peer.

The cost of communication is a step's time above that of the first team.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchkit import machine
from benchkit.team import Team

BOUND = "alone"


@dataclass(frozen=True)
class Comparison:
    """Options of a comparison.

    `name` is that of its JSON lines, `worker` a module that runs the step in a given way.
    """

    name: str
    worker: str
    model: str
    peer: str
    layers: int
    width: int
    batch: int
    batch_is: str
    environment: Mapping[str, str] = field(default_factory=dict)


def run(comparison: Comparison, description: str) -> int:
    options = _parse(comparison, description)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    before = machine.facts()
    cores = machine.cores_for(options.np)
    teams: list[Team] = []
    try:
        for way in (BOUND, "khorovod", comparison.peer):
            command = ["-m", comparison.worker, way]
            for name in ("width", "layers", "batch"):
                command += [f"--{name}", str(getattr(options, name))]
            teams.append(Team(way, options.np, command, cores, comparison.environment))
        _check_losses(teams)
        for turn in range(options.rounds):
            for team in teams if turn % 2 == 0 else reversed(teams):
                team.run(options.steps)
    finally:
        for team in teams:
            team.stop()
    rows = _summarise(teams)
    size = f"{options.layers} layers of width {options.width}, {options.np} ranks"
    title = f"A step of {comparison.model}, {size} (medians)"
    console.print(_table(rows, title, comparison.peer))
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"{comparison.name}.jsonl"
    about = {"ranks": options.np, "width": options.width, "layers": options.layers, "batch": options.batch}
    path.write_text("".join(json.dumps(row | about | {"machine": before}) + "\n" for row in rows))
    console.print(f"[dim]{path}; load before the run {before['load_before']}")
    return 0


def _check_losses(teams: list[Team]) -> None:
    """Raise an error unless both ways of communicating train equally: equal mean losses after equally many steps.

    The mean over ranks is compared, because a peer may report it on every rank, instead of the loss of the rank's data.
    """
    ours, theirs = teams[1].losses, teams[2].losses
    if abs(fmean(ours) - fmean(theirs)) > 1e-3 * abs(fmean(ours)):
        raise RuntimeError(f"the two ways do not compute the same: losses {ours} and {theirs}")


def _summarise(teams: list[Team]) -> list[dict[str, Any]]:
    bound = median(teams[0].times)
    peer_cost = median(teams[-1].times) - bound
    rows = []
    for team in teams:
        step = median(team.times)
        row = {"way": team.way, "step_ms": step * 1e3, "best_ms": min(team.times) * 1e3, "steps": len(team.times)}
        row["communication_ms"] = (step - bound) * 1e3
        row["times_less_than_the_peer"] = peer_cost / (step - bound) if step > bound else None
        rows.append(row)
    return rows


def _table(rows: list[dict[str, Any]], title: str, peer: str) -> Table:
    result = Table(title=title, title_justify="left")
    for heading in ("way", "step", "best", "communication", f"cost of {peer} / cost"):
        result.add_column(heading, justify="left" if heading == "way" else "right")
    for row in rows:
        ratio = row["times_less_than_the_peer"]
        bound = row["way"] == BOUND
        result.add_row(
            row["way"],
            f"{row['step_ms']:.2f} ms",
            f"{row['best_ms']:.2f} ms",
            "" if bound else f"{row['communication_ms']:.2f} ms",
            "" if bound or ratio is None else f"{ratio:.2f}",
        )
    return result


def _parse(comparison: Comparison, description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--width", type=int, default=comparison.width)
    parser.add_argument("--layers", type=int, default=comparison.layers)
    parser.add_argument("--batch", type=int, default=comparison.batch, help=f"{comparison.batch_is} of each rank")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10, help="in each turn of a round")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks"), metavar="DIR")
    return parser.parse_args()
