#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What communication costs in a training step of a small transformer in JAX: ours against JAX's own.

    python benchmarks/jax_step.py

The same step is run by ranks that send nothing (the bound), by horovod.jax, and by jax.distributed with shard_map and
psum over Gloo. All are alive throughout and take turns. The cost of communication is a step's time above the bound.
Prints a table and writes JSON lines.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchkit import machine
from benchkit.team import Team
from rich.console import Console
from rich.table import Table

WAYS = ("alone", "khorovod", "gloo")


def main() -> int:
    options = parse(sys.argv[1:])
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    before = machine.facts()
    cores = machine.cores_for(options.np)
    teams: list[Team] = []
    try:
        for way in WAYS:
            teams.append(team(way, options, cores))
        check_losses(teams)
        for turn in range(options.rounds):
            for each in teams if turn % 2 == 0 else reversed(teams):
                each.run(options.steps)
    finally:
        for each in teams:
            each.stop()
    rows = summarise(teams)
    console.print(table(rows, options))
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "jax_step.jsonl"
    about = {"ranks": options.np, "width": options.width, "layers": options.layers, "batch": options.batch}
    path.write_text("".join(json.dumps(row | about | {"machine": before}) + "\n" for row in rows))
    console.print(f"[dim]{path}; load before the run {before['load_before']}")
    return 0


def team(way: str, options: argparse.Namespace, cores: list[int]) -> Team:
    command = ["-m", "benchkit.jax_worker", way]
    for name in ("width", "layers", "batch"):
        command += [f"--{name}", str(getattr(options, name))]
    return Team(way, options.np, command, cores, {"JAX_PLATFORMS": "cpu"})


def check_losses(teams: list[Team]) -> None:
    """Both ways of communicating must train the same model: the same loss after the same steps, on every rank."""
    ours, theirs = teams[1].losses, teams[2].losses
    if any(abs(one - other) > 1e-3 * abs(one) for one, other in zip(ours, theirs, strict=True)):
        raise RuntimeError(f"the two ways do not compute the same: losses {ours} and {theirs}")


def summarise(teams: list[Team]) -> list[dict[str, Any]]:
    bound = median(teams[0].times)
    gloo_cost = median(teams[2].times) - bound
    rows = []
    for team in teams:
        step = median(team.times)
        row = {"way": team.way, "step_ms": step * 1e3, "best_ms": min(team.times) * 1e3, "steps": len(team.times)}
        row["communication_ms"] = (step - bound) * 1e3
        row["times_less_than_gloo"] = gloo_cost / (step - bound) if step > bound else None
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]], options: argparse.Namespace) -> Table:
    title = f"A step of a transformer, {options.layers} layers of width {options.width}, {options.np} ranks (medians)"
    result = Table(title=title, title_justify="left")
    for heading in ("way", "step", "best", "communication", "cost of Gloo / cost"):
        result.add_column(heading, justify="left" if heading == "way" else "right")
    for row in rows:
        ratio = row["times_less_than_gloo"]
        cost = "" if row["way"] == "alone" else f"{row['communication_ms']:.2f} ms"
        result.add_row(
            row["way"],
            f"{row['step_ms']:.2f} ms",
            f"{row['best_ms']:.2f} ms",
            cost,
            "" if row["way"] == "alone" or ratio is None else f"{ratio:.2f}",
        )
    return result


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4, help="sequences of 64 tokens for each rank")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10, help="in each turn of a round")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks"), metavar="DIR")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
