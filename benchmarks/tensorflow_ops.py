#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of an allreduce inside tf.function: ours and tf.distribute.MultiWorkerMirroredStrategy's.

    python benchmarks/tensorflow_ops.py

Two ranks hold both libraries and take turns: functions with a chain of allreduces of a small tensor, each of which
waits for the one before it, and functions with none (the bound). Prints a table and writes JSON lines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchkit import machine
from rich.console import Console
from rich.table import Table
from testkit.places import BENCHMARKS, python_path
from testkit.processes import Group
from testkit.variables import free_ports, of_ranks

LIMIT_S = 600.0


def main() -> int:
    options = parse(sys.argv[1:])
    before = machine.facts()
    rows = summarise(run(options), options)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    console.print(table(rows, options))
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "tensorflow_ops.jsonl"
    about = {"ranks": options.np, "chain": options.chain, "machine": before}
    path.write_text("".join(json.dumps(row | about) + "\n" for row in rows))
    console.print(f"[dim]{path}; load before the run {before['load_before']}")
    return 0


def run(options: argparse.Namespace) -> list[list[dict[str, list[float]]]]:
    """Return the measurements of each rank."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(options.np)]
    command = [sys.executable, "-m", "benchkit.tensorflow_worker"]
    for name in ("rounds", "calls", "chain"):
        command += [f"--{name}", str(getattr(options, name))]
    command += ["--elements", *map(str, options.elements)]
    shared = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": python_path(BENCHMARKS)}
    processes = []
    for rank, own in enumerate(of_ranks(options.np)):
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
        env = shared | own | {"TF_CONFIG": json.dumps(task)}
        processes.append(Group(command, env, stdout=subprocess.PIPE, stderr=None, text=True))
    try:
        answers = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.end()
    if any(process.returncode for process in processes):
        raise RuntimeError("a rank failed; its error is above")
    return [json.loads(answer.splitlines()[-1]) for answer in answers]


def summarise(measured: list[list[dict[str, list[float]]]], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return medians over rounds of the slowest rank's times. The overhead is the time above the bound."""
    rows = []
    for index, elements in enumerate(options.elements):
        ways = measured[0][index]
        medians = {
            way: median(max(turn) for turn in zip(*(rank[index][way] for rank in measured), strict=True))
            for way in ways
        }
        for way in ("khorovod", "tf.distribute"):
            overhead = medians[way] - medians["nothing"]
            rows.append({"way": way, "bytes": 4 * elements, "allreduce_us": overhead * 1e6})
    return rows


def table(rows: list[dict[str, Any]], options: argparse.Namespace) -> Table:
    title = f"An allreduce inside tf.function, {options.np} ranks (medians of {options.rounds} rounds)"
    result = Table(title=title, title_justify="left")
    for heading in ("bytes", "khorovod", "tf.distribute", "theirs / ours"):
        result.add_column(heading, justify="right")
    for ours, theirs in zip(rows[::2], rows[1::2], strict=True):
        result.add_row(
            str(ours["bytes"]),
            f"{ours['allreduce_us']:.0f} µs",
            f"{theirs['allreduce_us']:.0f} µs",
            f"{theirs['allreduce_us'] / ours['allreduce_us']:.1f}",
        )
    return result


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--elements", type=int, nargs="+", default=[1, 1000, 100_000], help="of float32")
    parser.add_argument("--chain", type=int, default=10, help="allreduces in a function")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=10, help="in each turn of a round")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks"), metavar="DIR")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
