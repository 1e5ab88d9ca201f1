#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the performance report: measure everything in turns with its peers, then write docs/performance*.md.

    python benchmarks/report.py                   # all parts, about 40 minutes
    python benchmarks/report.py --quick           # all parts, 6 to 8 minutes, wide intervals
    python benchmarks/report.py --only small,types
    python benchmarks/report.py --page            # measures nothing: the pages from the lines that are stored

Appends each line to benchmarks/results/MACHINE.jsonl at once, so that an interrupted run keeps its lines.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchkit import machine
from benchkit.ledger import Ledger, read
from benchkit.page import write_page
from testkit.lifetimes import interrupt_on_sigterm

_HERE = Path(__file__).resolve().parent
PARTS = ("collectives", "small", "types", "network", "launch", "training", "scaling")


def main() -> int:
    options = parse(sys.argv[1:])
    interrupt_on_sigterm()
    status = 0 if options.page else run(options)
    results = [read(path) for path in sorted(options.results.glob("*.jsonl"))]
    for path in write_page(options.docs, results, options.tables):
        print(path)
    return status


def run(options: argparse.Namespace) -> int:
    """Run all requested parts. Report a part that fails, and go on with the others."""
    from benchkit.parts import PARTS as ACTIONS
    from benchkit.parts.bench import Bench

    about = {"run": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "quick": options.quick}
    about |= {"machine": machine.facts(), "settings": machine.settings()}
    ledger = Ledger(options.results / f"{machine.kind()}.jsonl", about)
    bench = Bench(options.quick, ledger, options.openmpi_python, options.mpich_python, options.ranks)
    if about["machine"]["load_before"] > 0.5 * about["machine"]["cores"]:
        bench.say(f"WARNING: the machine is busy (load {about['machine']['load_before']}): figures will be noisy")
    failed = []
    for part in options.only:
        bench.say(f"== {part}")
        try:
            ACTIONS[part](bench)
        except KeyboardInterrupt:
            bench.say("interrupted; what was measured is kept")
            return 130
        except Exception as error:
            failed.append(part)
            bench.say(f"FAILED: {part}: {type(error).__name__}: {error}")
    bench.say(f"done; lines are in {ledger.path}" + (f"; FAILED: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def parse(arguments: list[str]) -> argparse.Namespace:
    def parts(text: str) -> list[str]:
        unknown = {*text.split(",")} - {*PARTS}
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(PARTS)}")
        return text.split(",")

    cores = machine.facts()["cores"]
    powers = [2**exponent for exponent in range(1, 7) if 2**exponent <= cores]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer sizes, ways and rounds")
    add("--only", type=parts, default=list(PARTS), metavar="PART,...", help=f"of {', '.join(PARTS)}")
    add("--page", action="store_true", help="measure nothing, make the pages from the stored lines")
    add("--ranks", type=lambda text: [int(one) for one in text.split(",")], default=powers,
        help="of the scaling part (default: powers of two up to the number of cores)")  # fmt: skip
    add("--openmpi-python", default=sys.executable, help="interpreter that has mpi4py with Open MPI")
    add("--mpich-python", default=sys.executable, help="interpreter that has mpi4py with MPICH")
    add("--results", type=Path, default=_HERE / "results", metavar="DIR")
    add("--docs", type=Path, default=_HERE.parent / "docs", metavar="DIR")
    add("--tables", type=Path, default=_HERE.parent / "bench-output", metavar="DIR", help="where the full tables go")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
