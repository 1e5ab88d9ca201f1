#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a training step costs above the same step in processes that do not know each other: ours and torch's DDP.

    python benchmarks/train_step.py            # ResNet-50, a GPT, ResNet-50's tensors alone
    python benchmarks/train_step.py --quick    # a minute's look
    python benchmarks/train_step.py --tiny     # 200 parameters of 4 bytes: hooks, negotiation and fusion

Prints a table, writes JSON lines and a picture.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from benchkit import bars, machine
from benchkit.svg import time_text
from benchkit.training_ways import BOUND, BY_NAME, QUICK, WAYS, unavailable, world_of
from benchkit.world import World, WorldError
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

WORKLOADS = {
    "resnet50": "ResNet-50 on 32x32 images",
    "gpt": "GPT of 20.5 M parameters",
    "tensors": "the 161 tensors of ResNet-50, next to no compute",
    "tiny": "200 parameters of 4 B",
}
RESAMPLES, CONFIDENCE = 2000, 0.95
Record = dict[str, Any]


@dataclass
class Series:
    """One way on one workload: microseconds of a step, once for each round."""

    world: World
    rounds: list[float] = field(default_factory=list)
    facts: Record = field(default_factory=dict)


@dataclass(frozen=True)
class Cost:
    """Microseconds of a step above the bound; `low` and `high` hold it with 95 % confidence."""

    value: float
    low: float
    high: float


def main() -> int:
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, _end)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    reason = unavailable()
    if reason is not None:
        console.print(f"[red]{reason}")
        return 2
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"{'train_step_tiny' if options.tiny else 'train_step'}.jsonl"
    path.write_text("")
    about = {"ranks": options.np, "settings": machine.settings(), "machine": machine.facts()}
    records: list[Record] = []
    complete = True
    for workload in options.workloads:
        found, all_there = measure(workload, options, console)
        records += found
        complete = complete and all_there
        with path.open("a") as file:  # at once: an interrupted run keeps what it has
            file.writelines(json.dumps(record | about) + "\n" for record in found)
        if found:
            console.print(table(workload, found))
    if records:
        save_plot(path.with_suffix(".svg"), records, options)
    console.print(f"[dim]{path} and {path.with_suffix('.svg').name}")
    return 0 if complete else 1


def measure(workload: str, options: argparse.Namespace, console: Console) -> tuple[list[Record], bool]:
    """One record for each way, and whether all ways came to the end. Fresh processes, so that peaks are their own."""
    series: dict[str, Series] = {}
    failed: list[str] = []
    try:
        for name in options.ways:
            series[name] = Series(world_of(BY_NAME[name], options.np, machine.cores_for(options.np)))
            attempt(name, series, failed, console, lambda name=name: get_ready(series[name], name, workload, options))
        steps = steps_per_turn(series, options)
        for number in range(options.rounds):
            # Forth and back, so that nobody always runs behind the same neighbour.
            for name in list(series) if number % 2 == 0 else list(reversed(series)):
                attempt(name, series, failed, console, lambda name=name: add_round(series[name], steps))
        for name in list(series):
            attempt(name, series, failed, console, lambda name=name: finish(series[name], name))
        return [record_of(name, one, series, workload, options) for name, one in series.items()], not failed
    finally:
        for one in series.values():
            one.world.stop()


def attempt(name: str, series: dict[str, Series], failed: list[str], console: Console, action: Any) -> None:
    """A way that fails is named and left out; the others go on."""
    try:
        action()
    except WorldError as error:
        console.print(f"[yellow]{name} is left out: {escape(str(error))}")
        series.pop(name).world.stop()
        failed.append(name)


def get_ready(one: Series, way: str, workload: str, options: argparse.Namespace) -> None:
    one.world.start()
    one.facts = one.world.ask("build", way=way, workload=workload, batch=options.batch[workload])[0]
    one.world.ask("steps", count=options.warmup)


def steps_per_turn(series: dict[str, Series], options: argparse.Namespace) -> int:
    """As many steps of the slowest way as fill a turn; the same for all."""
    slowest = max((_seconds(one.world, 1) for one in series.values()), default=1.0)
    return max(1, math.ceil(options.turn_seconds / slowest))


def add_round(one: Series, steps: int) -> None:
    one.rounds.append(_seconds(one.world, steps) / steps * 1e6)


def finish(one: Series, way: str) -> None:
    """Figures of ranks that have drifted apart are worth nothing."""
    states = one.world.ask("state")
    one.facts["peak_mib"] = max(state["peak_mib"] for state in states)
    if way != BOUND and len({state["weights"] for state in states}) != 1:
        raise WorldError(f"{way}: the ranks hold different weights after training")


def _seconds(world: World, steps: int) -> float:
    return float(max(answer["seconds"] for answer in world.ask("steps", count=steps)))


def record_of(way: str, one: Series, series: dict[str, Series], workload: str, options: argparse.Namespace) -> Record:
    low, high = np.percentile(one.rounds, [10, 90])
    record: Record = {"workload": workload, "way": way, "library": one.world.library, "batch": options.batch[workload]}
    record |= {"tensors": one.facts["tensors"], "parameters": one.facts["parameters"]}
    record |= {"step_us": float(np.median(one.rounds)), "p10_us": float(low), "p90_us": float(high)}
    record |= {"rounds": len(one.rounds), "peak_mib": one.facts["peak_mib"], "pinned": bool(one.world.cores)}
    if way != BOUND and BOUND in series:
        cost = cost_above(one.rounds, series[BOUND].rounds)
        record["cost_us"] = asdict(cost)
        record["cost_per_tensor_us"] = cost.value / one.facts["tensors"]
    return record


def cost_above(rounds: Sequence[float], bound: Sequence[float]) -> Cost:
    """Median of the differences round by round: what disturbs the machine for seconds falls on both."""
    differences = np.asarray(rounds) - np.asarray(bound)
    draws = np.random.default_rng(0).integers(0, len(differences), (RESAMPLES, len(differences)))
    edge = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.median(differences[draws], axis=1), [edge, 1 - edge])
    return Cost(float(np.median(differences)), float(low), float(high))


def table(workload: str, records: list[Record]) -> Table:
    facts = f"{records[0]['parameters']:,} parameters in {records[0]['tensors']} tensors"
    result = Table(title=f"{WORKLOADS[workload]}: {facts}", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("way", "step", "above the bound (95 %)", "of the bound", "per tensor", "peak memory"):
        result.add_column(heading, justify="left" if heading == "way" else "right", no_wrap=True)
    bound = next((record["step_us"] for record in records if record["way"] == BOUND), None)
    for record in records:
        cells = ["-", "-", "-"]
        if "cost_us" in record and bound is not None:
            cost = Cost(**record["cost_us"])
            interval = f"{signed(cost.value)} ({signed(cost.low)} to {signed(cost.high)})"
            cells = [interval, f"{cost.value / bound:+.1%}", signed(record["cost_per_tensor_us"])]
        result.add_row(record["way"], time_text(record["step_us"]), *cells, f"{record['peak_mib']:.0f} MiB")
    return result


def signed(microseconds: float) -> str:
    return ("-" if microseconds < 0 else "") + time_text(abs(microseconds))


def save_plot(path: Path, records: list[Record], options: argparse.Namespace) -> None:
    groups: dict[str, list[bars.Bar]] = {}
    for record in records:
        if "cost_us" in record:
            note = f" ({record['peak_mib']:.0f} MiB)"
            groups.setdefault(WORKLOADS[record["workload"]], []).append(
                bars.Bar(record["way"], **record["cost_us"], note=note)
            )
    about = machine.facts()
    subtitle = f"{options.np} ranks, one thread and one core each; 95 % intervals; peak memory of a rank in brackets"
    footer = f"{about['processor']}, {about['cores']} cores, load {about['load_before']}, {about['time']}"
    path.write_text(bars.draw("Cost of a training step above independent processes", subtitle, footer, groups))


def parse(arguments: list[str]) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [name.strip() for name in text.split(";" if ";" in text else ",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--quick", action="store_true", help="fewer ways, workloads and rounds")
    parser.add_argument("--tiny", action="store_true", help="only 200 parameters of 4 bytes")
    parser.add_argument("--workloads", type=names, default=None, help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--ways", type=names, default=None, help=f"separated by ';', of {'; '.join(BY_NAME)}")
    parser.add_argument("--rounds", type=int, default=None, help="turns of each way (default 20; quick: 6)")
    parser.add_argument("--turn-seconds", type=float, default=None, help="default 1; quick and tiny: 0.3")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the first round")
    parser.add_argument("--resnet-batch", type=int, default=4, help="images of a rank's step (default 4)")
    parser.add_argument("--gpt-batch", type=int, default=1, help="pieces of 128 tokens of a rank's step (default 1)")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks"), metavar="DIR")
    options = parser.parse_args(arguments)
    usual = ["gpt", "tensors"] if options.quick else ["resnet50", "gpt", "tensors"]
    options.workloads = options.workloads or (["tiny"] if options.tiny else usual)
    options.ways = options.ways or [way.name for way in WAYS if not options.quick or way.name in QUICK]
    options.rounds = options.rounds or (6 if options.quick else 20)
    options.turn_seconds = options.turn_seconds or (0.3 if options.quick or options.tiny else 1.0)
    options.batch = {"resnet50": options.resnet_batch, "gpt": options.gpt_batch, "tensors": 1, "tiny": 1}
    unknown = {*options.workloads} - {*WORKLOADS} | {*options.ways} - {*BY_NAME}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return options


def _end(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
