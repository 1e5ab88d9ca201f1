#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What communication costs in a step of a Keras model's fit: ours against tf.distribute.

    python benchmarks/keras_step.py

The same model is trained by ranks that send nothing (the bound), with horovod.tensorflow.keras, and under
MultiWorkerMirroredStrategy. All are alive throughout and take turns; each rank has one thread. All three use tf-keras,
for Keras 3 does not support that strategy. The cost of communication is a step's time above the bound.
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

WAYS = ("alone", "khorovod", "tf.distribute")
ENVIRONMENT = {
    "TF_USE_LEGACY_KERAS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}


def main() -> int:
    options = parse(sys.argv[1:])
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    before = machine.facts()
    cores = machine.cores_for(options.np)
    teams: list[Team] = []
    try:
        for way in WAYS:
            command = ["-m", "benchkit.keras_worker", way]
            for name in ("width", "layers", "batch"):
                command += [f"--{name}", str(getattr(options, name))]
            teams.append(Team(way, options.np, command, cores, ENVIRONMENT))
        for turn in range(options.rounds):
            for team in teams if turn % 2 == 0 else reversed(teams):
                team.run(options.steps)
    finally:
        for team in teams:
            team.stop()
    rows = summarise(teams)
    console.print(table(rows, options))
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "keras_step.jsonl"
    about = {"ranks": options.np, "width": options.width, "layers": options.layers, "batch": options.batch}
    path.write_text("".join(json.dumps(row | about | {"machine": before}) + "\n" for row in rows))
    console.print(f"[dim]{path}; load before the run {before['load_before']}")
    return 0


def summarise(teams: list[Team]) -> list[dict[str, Any]]:
    bound = median(teams[0].times)
    their_cost = median(teams[2].times) - bound
    rows = []
    for team in teams:
        step = median(team.times)
        row = {"way": team.way, "step_ms": step * 1e3, "best_ms": min(team.times) * 1e3, "steps": len(team.times)}
        row["communication_ms"] = (step - bound) * 1e3
        row["times_less_than_tf_distribute"] = their_cost / (step - bound) if step > bound else None
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]], options: argparse.Namespace) -> Table:
    title = f"A step of fit, {options.layers} layers of width {options.width}, {options.np} ranks (medians)"
    result = Table(title=title, title_justify="left")
    for heading in ("way", "step", "best", "communication", "cost of tf.distribute / cost"):
        result.add_column(heading, justify="left" if heading == "way" else "right")
    for row in rows:
        ratio = row["times_less_than_tf_distribute"]
        alone = row["way"] == "alone"
        result.add_row(
            row["way"],
            f"{row['step_ms']:.2f} ms",
            f"{row['best_ms']:.2f} ms",
            "" if alone else f"{row['communication_ms']:.2f} ms",
            "" if alone or ratio is None else f"{ratio:.2f}",
        )
    return result


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32, help="rows for each rank")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10, help="in each turn of a round")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks"), metavar="DIR")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
