#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the engine costs beside moving bytes: latency of small operations, an idle engine, importing.

    python benchmarks/overhead.py

Prints a table and writes JSON lines. Where torch is installed, Gloo stands beside our figures.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NoReturn

from benchkit import machine
from benchkit.libraries import Gloo, Khorovod
from benchkit.measuring import Pace, Series, measure
from benchkit.problem import Problem
from benchkit.summary import figures
from benchkit.svg import time_text
from benchkit.world import World, WorldError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

Row = dict[str, str | float]

LATENCIES = {
    "4 B allreduce": (4, 1),
    "32 KB allreduce": (32 * 1024, 1),
    "32 async allreduces of 1 KB": (1024, 32),
}


def main() -> int:
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, _end)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    worlds: list[World] = []
    rows: list[Row] = []
    try:
        series = start_all(options, worlds, console)
        if not series:
            return 1
        rows += latency_rows(series, options, console)
        rows += idle_rows(worlds, options.idle_seconds)
    finally:
        for world in worlds:
            world.stop()
    rows += import_rows(options.repeats)
    console.print(table(rows))
    options.output.mkdir(parents=True, exist_ok=True)
    about = {"ranks": options.np, "settings": machine.settings(), "machine": machine.facts()}
    path = options.output / "overhead.jsonl"
    path.write_text("".join(json.dumps(row | about) + "\n" for row in rows))
    console.print(f"[dim]{path}")
    return 1 if any(one.failure for one in series) else 0


def start_all(options: argparse.Namespace, worlds: list[World], console: Console) -> list[Series]:
    """Ours, and Gloo if it is there. Empty if ours does not start."""
    place = (options.np, machine.cores_for(options.np), "shm")
    for world in (Khorovod(*place), Gloo(*place)):
        reason = world.unavailable()
        try:
            worlds.append(world)
            if reason is None:
                world.start()
        except WorldError as error:
            reason = str(error)
        if reason is not None:
            console.print(f"[yellow]{world.name} is left out: {escape(reason)}")
            worlds.remove(world)
            world.stop()
    started = [Series(world.name, world, "numpy") for world in worlds]
    return started if started and started[0].label == "khorovod" else []


def latency_rows(series: list[Series], options: argparse.Namespace, console: Console) -> list[Row]:
    rows: list[Row] = []
    pace = Pace(rounds=10, seconds=options.seconds, dirty=False, aligned=True)
    for what, (size, tensors) in LATENCIES.items():
        problem = Problem("allreduce", size, "float32", options.np, tensors)
        for one in measure(problem, series, pace, lambda text: console.print(f"[yellow]{escape(text)}")):
            found = figures(problem, one.rounds)
            row: Row = {"what": what, "library": one.label, "value": found["median_us"], "unit": "µs"}
            rows.append(row | {"note": f"p99 {time_text(found['p99_us'])}, min {time_text(found['min_us'])}"})
    return rows


def idle_rows(worlds: list[World], seconds: float) -> list[Row]:
    """CPU time of a rank that has just worked and now does nothing, and the memory that joining the world added."""
    rows: list[Row] = []
    for world in worlds:
        try:
            answers = world.idle(seconds)
        except WorldError:
            continue  # said already when it failed
        cpu = max(answer["cpu_s"] for answer in answers)
        wakeups = max(answer["wakeups"] for answer in answers)
        memory = max(hello["added_bytes"] for hello in world.hellos) / 2**20
        row: Row = {
            "what": f"idle for {seconds:g} s: CPU time",
            "library": world.name,
            "value": cpu * 1e3,
            "unit": "ms",
        }
        rows.append(row | {"note": f"{wakeups} wake-ups"})
        note = "resident, by import and init"
        rows.append({"what": "memory added", "library": world.name, "value": memory, "unit": "MiB", "note": note})
    return rows


def import_rows(repeats: int) -> list[Row]:
    def seconds(module: str) -> float:
        code = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        return float(done.stdout)

    modules = ("numpy", "horovod", "horovod.numpy")
    return [
        {
            "what": f"import {module}",
            "library": "khorovod" if "horovod" in module else "numpy",
            "value": _typical(seconds, module, repeats),
            "unit": "s",
            "note": "",
        }
        for module in modules
    ]


def table(rows: list[Row]) -> Table:
    result = Table(title="Overhead (medians)", title_justify="left")
    for heading in ("what", "library", "value", "note"):
        result.add_column(heading, justify="right" if heading == "value" else "left")
    for row in rows:
        value = float(row["value"])
        text = time_text(value) if row["unit"] == "µs" else f"{value:.3g} {row['unit']}"
        result.add_row(str(row["what"]), str(row["library"]), text, str(row["note"]))
    return result


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for one library and problem")
    parser.add_argument("--idle-seconds", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=5, help="imports of each kind")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks"), metavar="DIR")
    return parser.parse_args(arguments)


def _typical(measure_once: Callable[[str], float], argument: str, repeats: int) -> float:
    return median(measure_once(argument) for _ in range(repeats))


def _end(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
