#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the time of a training step above that of unconnected processes, for our optimizer and torch's DDP.

    python benchmarks/train_step.py            # ResNet-50, a GPT, ResNet-50's tensors alone
    python benchmarks/train_step.py --quick    # a minute's look
    python benchmarks/train_step.py --tiny     # 200 parameters of 4 bytes: hooks, negotiation and fusion
    python benchmarks/train_step.py --many     # 100 to 30,000 parameters of 64 bytes: what one costs at any count

Prints a table, writes JSON lines and a picture.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path

from benchkit import machine
from benchkit.hosts import NamespaceHosts
from benchkit.pairs import LEAST_PAIRS, Cost
from benchkit.report import NO_PICTURE
from benchkit.training import BATCH, MANY, WORKLOADS, Record, Setup, measure, records_of
from benchkit.training_ways import BOUND, BY_NAME, QUICK, WAYS, unavailable
from benchkit.units import time_text
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from testkit.lifetimes import interrupt_on_sigterm


def main() -> int:
    options = parse(sys.argv[1:])
    interrupt_on_sigterm()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    reason = unavailable()
    if reason is not None:
        console.print(f"[red]{reason}")
        return 2
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / f"train_step{'_tiny' * options.tiny}{'_many' * options.many}.jsonl"
    path.write_text("")
    about = {"ranks": options.np, "hosts": options.hosts, "settings": machine.settings(), "machine": machine.facts()}
    records: list[Record] = []
    pace = (options.rounds, options.turn_seconds, options.warmup, options.batch, options.launches)
    hosts = NamespaceHosts(options.hosts, options.np // options.hosts) if options.hosts > 1 else None
    setup = Setup(options.np, options.ways, *pace, hosts)
    try:
        complete = measure_all(options, setup, path, about, records, console)
    finally:
        if hosts is not None:
            hosts.close()
    picture = save_plot(path.with_suffix(".svg"), records, options) if records else "no picture: nothing was measured"
    console.print(f"[dim]{path} and {picture}")
    return 0 if complete else 1


def measure_all(
    options: argparse.Namespace, setup: Setup, path: Path, about: Record, records: list[Record], console: Console
) -> bool:
    """Measure, show and save all workloads. Add the results to `records`. Return True if every way finished."""
    complete = True
    for workload in options.workloads:
        series, all_there = measure(workload, setup, lambda text: console.print(f"[yellow]{escape(text)}"))
        found = records_of(workload, series, setup)
        records += found
        complete = complete and all_there
        with path.open("a") as file:  # written at once, so that an interrupted run keeps its results
            file.writelines(json.dumps(record | about) + "\n" for record in found)
        if found:
            console.print(table(workload, found))
    return complete


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


def save_plot(path: Path, records: list[Record], options: argparse.Namespace) -> str:
    """Save the picture. Return its file name, or the reason why there is none."""
    if find_spec("matplotlib") is None:
        return NO_PICTURE
    from benchkit import bars

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
    title = "Cost of a training step above independent processes"
    path.write_text(bars.draw(title, subtitle, footer, groups), encoding="utf-8")
    return path.name


def parse(arguments: list[str]) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [name.strip() for name in text.split(";" if ";" in text else ",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--hosts", type=int, default=1, help="network namespaces that share the ranks (needs root)")
    parser.add_argument("--quick", action="store_true", help="fewer ways, workloads and rounds")
    parser.add_argument("--tiny", action="store_true", help="only 200 parameters of 4 bytes")
    parser.add_argument("--many", action="store_true", help="only 100 to 30,000 parameters of 64 bytes")
    parser.add_argument("--workloads", type=names, default=None, help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--ways", type=names, default=None, help=f"separated by ';', of {'; '.join(BY_NAME)}")
    parser.add_argument(
        "--rounds", type=int, default=None, help="turns of each way and launch (default 20; quick, tiny and many: 6)"
    )
    parser.add_argument("--launches", type=int, default=None, help="with fresh processes (default 1; tiny: 6)")
    parser.add_argument("--turn-seconds", type=float, default=None, help="default 2; quick, tiny and many: 0.3")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the first round")
    parser.add_argument("--resnet-batch", type=int, default=4, help="images of a rank's step (default 4)")
    parser.add_argument("--gpt-batch", type=int, default=1, help="pieces of 128 tokens of a rank's step (default 1)")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks"), metavar="DIR")
    options = parser.parse_args(arguments)
    usual = ["gpt", "tensors"] if options.quick else ["resnet50", "gpt", "tensors"]
    small = ["tiny"] * options.tiny + [*MANY] * options.many
    options.workloads = options.workloads or small or usual
    few = options.quick or options.many
    options.ways = options.ways or [way.name for way in WAYS if not few or way.name in QUICK]
    options.launches = options.launches or (LEAST_PAIRS if options.tiny and not options.quick else 1)
    options.rounds = options.rounds or (LEAST_PAIRS if few or options.tiny else 20)
    options.turn_seconds = options.turn_seconds or (0.3 if few or options.tiny else 2.0)
    options.batch = BATCH | {"resnet50": options.resnet_batch, "gpt": options.gpt_batch}
    unknown = {*options.workloads} - {*WORKLOADS} | {*options.ways} - {*BY_NAME}
    if options.np % options.hosts:
        parser.error("every host needs the same number of ranks")
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    sys.exit(main())
