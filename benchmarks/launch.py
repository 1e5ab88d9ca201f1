#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From the command line to the first collective: horovodrun, and torchrun where torch is installed.

    python benchmarks/launch.py

Launches alternate, so that whatever else the machine does falls on both. Prints a table and writes JSON lines.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NoReturn

from benchkit import machine
from benchkit.lifetime import die_with_parent, end_group
from rich.console import Console
from rich.table import Table

# Each rank tells when it has its first result; what counts is the last of them.
_TELL = "open(sys.argv[1] + str(rank), 'w').write(str(time.time()))"
_KHOROVOD = f"""
import sys, time, numpy, horovod.numpy as hvd
hvd.init(); hvd.allreduce(numpy.ones(4)); rank = hvd.rank(); {_TELL}"""
_GLOO = f"""
import sys, time, torch, torch.distributed as dist
dist.init_process_group('gloo'); dist.all_reduce(torch.ones(4)); rank = dist.get_rank(); {_TELL}"""
# The floor: what starting the processes and importing NumPy takes, with no launcher and no collective.
_NOTHING = f"import os, sys, time, numpy; rank = os.getpid(); {_TELL}"
LIMIT_S = 120


@dataclass(frozen=True)
class Way:
    """A way to start ranks; `launcher` empty: each rank is started by hand."""

    name: str
    launcher: tuple[str, ...]
    program: str

    def command(self, ranks: int) -> list[str]:
        worker = [sys.executable, "-c", self.program]
        return [sys.executable, *self.launcher, str(ranks), *worker] if self.launcher else worker


WAYS = (
    Way("horovodrun", ("-m", "horovod.runner.launch", "-np"), _KHOROVOD),
    Way("torchrun", ("-m", "torch.distributed.run", "--no-python", "--standalone", "--nproc-per-node"), _GLOO),
    Way("python and numpy alone", (), _NOTHING),
)


def main() -> int:
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, _end)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    ways = [way for way in WAYS if way.name != "torchrun" or importlib.util.find_spec("torch") is not None]
    seconds: dict[str, list[tuple[float, float]]] = {way.name: [] for way in ways}
    for turn in range(options.repeats + 1):
        for way in ways:
            measured = launch_once(way, options.np)
            if turn > 0:  # the first fills the page cache and writes byte code
                seconds[way.name].append(measured)
    records = [record(way, options.np, seconds[way.name]) for way in ways]
    console.print(table(records, options.np))
    options.output.mkdir(parents=True, exist_ok=True)
    about = {"settings": machine.settings(), "machine": machine.facts()}
    path = options.output / "launch.jsonl"
    path.write_text("".join(json.dumps(one | about) + "\n" for one in records))
    console.print(f"[dim]{path}")
    return 0


def launch_once(way: Way, ranks: int) -> tuple[float, float]:
    """Seconds from the start to the last rank's first result, and CPU seconds of all processes."""
    with tempfile.TemporaryDirectory(prefix="bench-launch-") as folder:
        before, start = _children_cpu(), time.time()
        count = 1 if way.launcher else ranks
        processes = [
            subprocess.Popen(
                [*way.command(ranks), f"{folder}/"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
            for _ in range(count)
        ]
        try:
            outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
        finally:
            for process in processes:
                end_group(process)
        told = [float(path.read_text()) for path in Path(folder).iterdir()]
        if len(told) != ranks or any(process.returncode for process in processes):
            raise RuntimeError(f"{way.name} failed:\n{b''.join(outputs).decode(errors='replace')[-2000:]}")
        return max(told) - start, _children_cpu() - before


def record(way: Way, ranks: int, measured: list[tuple[float, float]]) -> dict[str, object]:
    walls, cpus = [one[0] for one in measured], [one[1] for one in measured]
    return {
        "what": "launch to first collective" if way.launcher else "start and import numpy",
        "way": way.name,
        "ranks": ranks,
        "launches": len(measured),
        "median_s": median(walls),
        "min_s": min(walls),
        "max_s": max(walls),
        "cpu_median_s": median(cpus),
        "cpu_min_s": min(cpus),
    }


def table(records: list[dict[str, object]], ranks: int) -> Table:
    result = Table(title=f"From the command line to the first collective, {ranks} ranks", title_justify="left")
    for heading in ("way", "median", "min", "max", "CPU, median", "CPU, min"):
        result.add_column(heading, justify="left" if heading == "way" else "right")
    for one in records:
        keys = ("median_s", "min_s", "max_s", "cpu_median_s", "cpu_min_s")
        result.add_row(str(one["way"]), *(f"{one[key]:.2f} s" for key in keys))
    return result


def _children_cpu() -> float:
    times = os.times()
    return times.children_user + times.children_system


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--repeats", type=int, default=7, help="launches of each kind (default 7)")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks"), metavar="DIR")
    return parser.parse_args(arguments)


def _end(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
