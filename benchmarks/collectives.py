#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare our collectives with those of other libraries in one run on the same cores, in turns in every round.

    python benchmarks/collectives.py --np 2
    python benchmarks/collectives.py --quick --ops allreduce --sizes 4,32K,25M --peers gloo,openmpi

Writes JSON lines and an SVG plot, and prints tables with confidence intervals. Leaves out peers that are not installed.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from benchkit import machine
from benchkit.floor import Floor
from benchkit.libraries import Gloo, Khorovod, Mpich, OpenMpi
from benchkit.measuring import Pace, Series, measure
from benchkit.problem import OPS, Problem
from benchkit.report import Record, Report
from benchkit.units import size_text, time_text
from benchkit.world import IDLE_LIMIT, World
from rich.console import Console
from rich.markup import escape
from testkit.lifetimes import interrupt_on_sigterm

SIZES = "4,64,1K,4K,32K,256K,1M,4M,25M,100M,256M"
QUICK_SIZES = "4,1K,32K,1M,25M"
PEERS = ("gloo", "openmpi", "mpich", "floor")
DOORS = ("numpy", "address", "shared")


def main() -> int:
    options = parse(sys.argv[1:])
    interrupt_on_sigterm()
    console = Console(width=None if sys.stdout.isatty() else 180, highlight=False)
    log = Console(stderr=True, highlight=False, soft_wrap=True)
    pace = Pace(options.rounds, options.seconds, options.dirty, not options.back_to_back)
    facts = machine.facts()
    if facts["load_before"] > 0.5 * facts["cores"]:
        log.print(f"[yellow]The machine is busy (load {facts['load_before']}): figures will be noisy.")
    report = Report(options.output, facts, machine.settings(), pace)
    worlds: list[World] = []
    series: list[Series] = []
    ours, interrupted = "khorovod", False
    try:
        series = start_all(options, worlds, log)
        if not series:
            return 1
        ours = series[0].label
        run_all(options, series, pace, report, log)
    except KeyboardInterrupt:
        interrupted = True
        log.print("[yellow]Interrupted; what was measured is kept.")
    finally:
        for world in worlds:
            world.stop()
    report.print_tables(console, ours)
    console.print(f"[dim]{report.lines_path} and {report.save_plot(*captions(options, facts))}")
    restless = [world for world in worlds if world.idle_share > IDLE_LIMIT]
    for world in restless:
        console.print(f"[red]{idle_warning(world)}")
    if interrupted:
        return 130
    return 1 if restless or not report.records or any(one.failure for one in series) else 0


def start_all(options: argparse.Namespace, worlds: list[World], log: Console) -> list[Series]:
    """Return the series to measure, ours first. Add every world that was tried to `worlds`, for the caller to stop."""
    cores = [] if options.no_pinning else machine.cores_for(options.np)
    log.print(f"{options.np} ranks, " + (f"pinned to cores {cores}" if cores else "not pinned"))
    place = (options.np, cores, options.transport)
    wanted: list[tuple[World, list[tuple[str, str]]]] = [
        (Khorovod(*place), [("khorovod" if door == "numpy" else f"khorovod, {door}", door) for door in options.doors])
    ]
    for text in options.variant:
        label, _, variables = text.partition(":")
        extra = dict(pair.split("=", 1) for pair in shlex.split(variables))
        wanted.append((Khorovod(*place, name=label, extra=extra), [(label, options.doors[0])]))
    makers: dict[str, Callable[[], World]] = {
        "gloo": lambda: Gloo(*place),
        "openmpi": lambda: OpenMpi("openmpi", *place, options.openmpi_python),
        "mpich": lambda: Mpich("mpich", *place, options.mpich_python),
    }
    wanted += [(makers[peer](), [(peer, "")]) for peer in options.peers if peer != "floor"]
    if "floor" in options.peers:
        wanted.append((Floor(*place), [("floor", ""), ("floor, shared", "shared")]))
    series = []
    for world, labels in wanted:
        worlds.append(world)
        if start(world, log):
            series += [Series(label, world, door) for label, door in labels]
        elif not series:
            break  # without our own engine there is nothing to compare
    return series


def start(world: World, log: Console) -> bool:
    reason = world.try_start()
    if reason is None and world.idle_share > IDLE_LIMIT:
        log.print(f"[red]{idle_warning(world)}")
    log.print(f"[yellow]{world.name} is left out: {escape(reason)}" if reason else f"{world.name}: {world.library}")
    return reason is None


def idle_warning(world: World) -> str:
    share = f"{world.idle_share:.0%} of a core"
    return f"Idle ranks of {world.name} take {share} from those that are measured: all figures and ratios are spoilt."


def run_all(options: argparse.Namespace, series: list[Series], pace: Pace, report: Report, log: Console) -> None:
    def say(text: str) -> None:
        log.print(f"[yellow]{escape(text)}")

    for op in options.ops:
        for size in options.sizes:
            problem = Problem(op, size, options.dtype, options.np, options.tensors)
            records = report.add(problem, measure(problem, series, pace, say), series[0].label)
            log.print(f"[dim]{progress_line(problem, records)}")


def progress_line(problem: Problem, records: list[Record]) -> str:
    times = "  ".join(f"{record['peer']} {time_text(record['median_us'])}" for record in records)
    return f"{problem.op:>13} {size_text(problem.actual_bytes):>8}  {times}"


def captions(options: argparse.Namespace, facts: Record) -> tuple[str, str, str]:
    title = f"Collectives on {options.np} ranks: time by size"
    kind = "dirty buffers" if options.dirty else "back to back" if options.back_to_back else "aligned starts"
    many = f", {options.tensors} tensors at once" if options.tensors > 1 else ""
    subtitle = f"{options.dtype}, {options.transport}, {kind}{many}; medians, bands from p10 to p90; lower is better"
    footer = f"{facts['processor']}, {facts['cores']} cores, Linux {facts['kernel']}, {str(facts['time'])[:10]}"
    return title, subtitle, footer


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--np", type=int, default=2, help="ranks (default 2); pinned to a core each if there are enough")
    add("--quick", action="store_true", help="a minute's run: fewer sizes and rounds")
    add("--ops", type=_list_of(OPS), default=list(OPS), help=f"of {','.join(OPS)} (default all)")
    add("--sizes", type=_sizes, help=f"bytes, with K, M, G (default {SIZES}; quick {QUICK_SIZES})")
    add("--peers", type=_list_of(PEERS), default=list(PEERS), help=f"of {','.join(PEERS)} (default all)")
    add("--doors", type=_list_of(DOORS), default=list(DOORS), help=f"our entrances, of {','.join(DOORS)} (default all)")
    add(
        "--variant",
        action="append",
        default=[],
        metavar="LABEL:NAME=VALUE ...",
        help="measure our engine also with these environment variables (settings, or another build's PYTHONPATH)",
    )
    add("--transport", choices=("shm", "tcp"), default="shm", help="shared memory or sockets (Gloo: sockets always)")
    add("--dtype", default="float32")
    add("--tensors", type=int, default=1, help="start this many allreduces of the size at once, then wait for all")
    add("--dirty", action="store_true", help="every rank rewrites its buffer before each operation, untimed")
    add("--back-to-back", action="store_true", help="no common start of each operation")
    add("--rounds", type=int, help="turns that each library takes with each problem (default 15; quick 5)")
    add("--seconds", type=float, help="time for one library and problem (default 0.6; quick 0.2)")
    add("--no-pinning", action="store_true")
    add("--openmpi-python", default=sys.executable, help="interpreter that has mpi4py with Open MPI")
    add("--mpich-python", default=sys.executable, help="interpreter that has mpi4py with MPICH")
    add("--output", type=Path, default=Path("build/benchmarks"), metavar="DIR")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.np < 2:
        parser.error("--np: a collective needs at least 2 ranks")
    options.sizes = options.sizes or _sizes(QUICK_SIZES if options.quick else SIZES)
    options.rounds = options.rounds or (5 if options.quick else 15)
    options.seconds = options.seconds or (0.2 if options.quick else 0.6)
    return options


def _list_of(allowed: tuple[str, ...]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        values = [value for value in text.split(",") if value]
        unknown = set(values) - set(allowed)
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(allowed)}")
        return values

    return read


def _sizes(text: str) -> list[int]:
    factors = {"K": 2**10, "M": 2**20, "G": 2**30}
    try:
        return [int(part.rstrip("KMG")) * factors.get(part[-1], 1) for part in text.upper().split(",")]
    except (ValueError, IndexError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of sizes such as 4,32K,25M") from None


if __name__ == "__main__":
    sys.exit(main())
