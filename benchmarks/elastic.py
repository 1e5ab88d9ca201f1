#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the loss or the arrival of workers costs an elastic job: seconds from kill -9 to the next completed step.

    python benchmarks/elastic.py                       # 4 workers lose one; two join two; torchrun's restart beside it
    python benchmarks/elastic.py --faults              # detect and resume seconds of faults 1 to 6
    python benchmarks/elastic.py --faults --write      # and put the tables between their marks in docs/elastic.md

All processes are on this machine, with PyTorch on processors. A step is a small network's, about 10 ms; every step is
committed. The survivors keep their processes; torchrun starts all workers again, from a checkpoint of every step.
Fault 4, a host that is cut off, needs several hosts and is not measured here.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchkit import elastic_jobs as jobs
from testkit.places import ROOT

PAGE = ROOT / "docs" / "elastic.md"
WORKERS = 4
Table = list[Sequence[str]]


def main() -> int:
    options = parse()
    random.seed(options.seed)
    tables = {"recovery": recovery(options)}
    if options.faults:
        tables["faults"] = faults(options)
    for name, table in tables.items():
        text = markdown(table)
        print(f"\n{text}", flush=True)
        if options.write:
            write(PAGE, name, text)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="kills in one job")
    parser.add_argument("--slow-rounds", type=int, default=5, help="of what takes ten seconds each")
    parser.add_argument("--faults", action="store_true", help="the table of faults 1 to 6, too")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def recovery(options: argparse.Namespace) -> Table:
    table: Table = [("what", "p50 (s)", "p95 (s)", "most (s)", "times")]
    kills = jobs.recoveries(options.rounds, WORKERS, random.choice, signal.SIGKILL)
    table.append(("`kill -9` of one of 4 to the next step of the other 3", *spread([one["resume"] for one in kills])))
    table += [(f"of that: {part}", *spread([one[part] for one in kills])) for part in jobs.PARTS]
    replaced = jobs.recoveries(options.rounds, WORKERS, random.choice, signal.SIGKILL, "--spares", "1")
    back = [one["resume"] for one in replaced if one["size"] == WORKERS]
    table.append(("`kill -9` of one of 4 to the next step of 4, with a spare", *spread(back)))
    added = jobs.growths(options.slow_rounds)
    table.append(("2 workers join 2: pause of those who were there", *spread([one["pause"] for one in added])))
    restarts = jobs.torchrun_restarts(options.slow_rounds, WORKERS)
    table.append(
        ("`kill -9` of one of 4 under torchrun to the next step", *spread([one["resume"] for one in restarts]))
    )
    return table


def faults(options: argparse.Namespace) -> Table:
    few, many = options.slow_rounds, options.rounds

    def not_first(workers: list[jobs.Entry]) -> jobs.Entry:
        return random.choice(workers[1:])

    rows = {
        "1 `kill -9` of a rank, job that is not elastic": jobs.static_losses(few, WORKERS),
        "2 `kill -9` of a rank": jobs.recoveries(many, WORKERS, not_first, signal.SIGKILL),
        "3 a frozen rank (`SIGSTOP`; declared dead after 10 s)": jobs.recoveries(
            few, WORKERS, random.choice, signal.SIGSTOP
        ),
        "5 `kill -9` of rank 0": jobs.recoveries(many, WORKERS, lambda workers: workers[0], signal.SIGKILL),
        "6 `kill -9` of `horovodrun`: all workers are gone": jobs.lost_launchers(few, WORKERS),
    }
    table: Table = [("fault", "detect p50 (s)", "p95 (s)", "resume p50 (s)", "p95 (s)", "times")]
    for name, found in rows.items():
        *detect, _, times = spread([one["detected"] for one in found])
        resume = spread([one["resume"] for one in found])[:2] if "resume" in found[0] else ("", "")
        table.append((name, *detect, *resume, times))
    return table


def spread(seconds: list[float]) -> tuple[str, str, str, str]:
    ordered = sorted(seconds)
    picked = (ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))], ordered[-1])
    p50, p95, most = (f"{one:.3f}" if one < 0.1 else f"{one:.2f}" for one in picked)
    return p50, p95, most, str(len(ordered))


def markdown(table: Table) -> str:
    head, *rows = table
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def write(page: Path, name: str, text: str) -> None:
    """Between the marks of this name."""
    before, begin, rest = page.read_text().partition(f"<!-- {name}: benchmarks/elastic.py -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    if not (begin and end):
        raise ValueError(f"{page} has no marks for {name}")
    page.write_text(f"{before}{begin}{text}\n{end}{after}")


if __name__ == "__main__":
    sys.exit(main())
