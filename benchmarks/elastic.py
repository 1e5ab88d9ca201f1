#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of losing and adding workers in an elastic job: seconds from a fault to the next completed step.

    python benchmarks/elastic.py                       # 4 minutes: as many rounds of everything as there is time for
    python benchmarks/elastic.py --seconds 900 --write # and put the tables between their marks in docs/elastic.md

4 workers lose one, with and without a spare; 2 workers join 2; torchrun restarts for comparison; and the detection and
resume times of faults 1 to 6. All processes are on this machine, with PyTorch on CPUs. A step of the small network
takes about 10 ms, and every step is committed. The survivors keep their processes; torchrun starts all workers again
from a checkpoint of every step. Fault 4, a host that is cut off, needs root and sshd, and is left out without them.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchkit import elastic_jobs as jobs
from testkit.places import ROOT
from testkit.ssh import missing

PAGE = ROOT / "docs" / "elastic.md"
WORKERS = 4
STEAL = 7  # index of the steal time in /proc/stat
Table = list[Sequence[str]]
Found = list[dict[str, float]]


def main() -> int:
    options = parse()
    random.seed(options.seed)
    before = processor_times()
    found = measure(Clock(options.seconds))
    every = [now - then for now, then in zip(processor_times(), before, strict=True)]
    print(f"\nof the processors' time, other machines took {100 * every[STEAL] / sum(every):.0f} %")
    for name, table in {"recovery": recovery(found), "faults": faults(found)}.items():
        text = markdown(table)
        print(f"\n{text}", flush=True)
        if options.write:
            write(PAGE, name, text)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=210, help="for all parts; starting their jobs adds to it")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def processor_times() -> list[int]:
    """Return the time of all processors since the machine started, by kind of use."""
    return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]


class Clock:
    """Clock that divides the time among the measurements and prints the progress."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()

    def rounds(self, what: str, share: float) -> Iterator[int]:
        """Yield numbers of rounds, at least one, while another round of average length ends within the share.

        The shares leave a fifth of the time to jobs that are started before their first round.
        """
        began = time.monotonic()
        number = 0
        while True:
            now = time.monotonic()
            if number and (now - began) * (number + 1) / number > share * self._seconds:
                return
            print(f"{now - self._began:4.0f} s  {what}: round {number + 1}", flush=True)
            yield number
            number += 1


def measure(clock: Clock) -> dict[str, Found]:
    found: dict[str, Found] = {}
    with jobs.elastic_job(WORKERS) as job:
        rounds = clock.rounds("kill -9 of one of 4", 0.18)
        found["killed"] = jobs.recoveries(job, rounds, WORKERS, first_and_others, signal.SIGKILL)
        rounds = clock.rounds("a frozen worker", 0.1)
        found["frozen"] = jobs.recoveries(job, rounds, WORKERS, first_and_others, signal.SIGSTOP)
        found["launcher"] = [jobs.lost_launcher(job)]
    with jobs.elastic_job(WORKERS, "--spares", "1") as job:
        rounds = clock.rounds("kill -9 of one of 4, with a spare", 0.15)
        found["replaced"] = jobs.recoveries(job, rounds, WORKERS, first_and_others, signal.SIGKILL, spares=1)
        found["launcher"].append(jobs.lost_launcher(job))
    found["added"] = jobs.growths(clock.rounds("2 workers join 2", 0.12))
    found["torchrun"] = jobs.torchrun_restarts(clock.rounds("kill -9 of one of 4 under torchrun", 0.1), WORKERS)
    found["static"] = jobs.static_losses(clock.rounds("kill -9 of one of 4, not elastic", 0.06), WORKERS)
    if absent := missing():
        print(f"a host that is cut off is left out: missing here: {', '.join(absent)}")
    else:
        found["cut off"] = jobs.lost_host(clock.rounds("a host that is cut off", 0.06), WORKERS)
    return found


def first_and_others(workers: list[jobs.Entry], round_: int) -> jobs.Entry:
    """Return rank 0 in every second round, else another worker at random."""
    return random.choice(workers[1:]) if round_ % 2 == 0 else workers[0]


def recovery(found: dict[str, Found]) -> Table:
    table: Table = [("what", "p50 (s)", "p95 (s)", "most (s)", "times")]

    def row(what: str, rounds: Found, name: str) -> None:
        table.append((what, *spread([one[name] for one in rounds])))

    row("`kill -9` of one of 4 to the next step of the other 3", found["killed"], "resume")
    for part in jobs.PARTS:
        row(f"of that: {part}", found["killed"], part)
    back = [one for one in found["replaced"] if one["size"] == WORKERS]
    row("`kill -9` of one of 4 to the next step of 4, with a spare", back, "resume")
    row("2 workers join 2: pause of those who were there", found["added"], "pause")
    row("the same: how often they are interrupted", found["added"], "interruptions")
    row("`kill -9` of one of 4 under torchrun to the next step", found["torchrun"], "resume")
    return table


def faults(found: dict[str, Found]) -> Table:
    rows = {
        "1 `kill -9` of a rank, job that is not elastic": found["static"],
        "2 `kill -9` of a rank": [one for one in found["killed"] if one["rank"] != 0],
        "3 a frozen rank (`SIGSTOP`; declared dead after 10 s)": found["frozen"],
        "4 a host that is cut off (declared lost after 10 s)": found.get("cut off", []),
        "5 `kill -9` of rank 0": [one for one in found["killed"] if one["rank"] == 0],
        "6 `kill -9` of `horovodrun`: all workers are gone": found["launcher"],
    }
    table: Table = [("fault", "detect p50 (s)", "p95 (s)", "resume p50 (s)", "p95 (s)", "times")]
    for name, rounds in rows.items():
        *detect, _, times = spread([one["detected"] for one in rounds])
        resume = spread([one["resume"] for one in rounds if "resume" in one])[:2]
        table.append((name, *detect, *resume, times))
    return table


def spread(seconds: list[float]) -> tuple[str, str, str, str]:
    if not seconds:
        return "", "", "", ""
    ordered = sorted(seconds)
    picked = (median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))], ordered[-1])
    p50, p95, most = (f"{one:.3f}" if one < 0.1 else f"{one:.2f}" for one in picked)
    return p50, p95, most, str(len(ordered))


def markdown(table: Table) -> str:
    head, *rows = table
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def write(page: Path, name: str, text: str) -> None:
    """Replace the text between the marks of this name."""
    before, begin, rest = page.read_text().partition(f"<!-- {name}: benchmarks/elastic.py -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    if not (begin and end):
        raise ValueError(f"{page} has no marks for {name}")
    page.write_text(f"{before}{begin}{text}\n{end}{after}")


if __name__ == "__main__":
    sys.exit(main())
