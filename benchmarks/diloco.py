#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare DiLoCo with synchronous training and with plain averaging: loss, bytes and tokens per second.

    python benchmarks/diloco.py                        # 3 seeds, 2,000 inner steps: less than 9 minutes on 16 cores
    python benchmarks/diloco.py --seeds 1 --steps 500 --only "synchronous;DiLoCo fp32"
    sudo python benchmarks/diloco.py --slow-link       # tokens per second over 100 Mbit/s (needs root, `ip` and `tc`)

A transformer of 0.6 million parameters predicts the next character of the sources of Python's standard library. Four
workers with one thread each train it, in every way with the same batches. Rounds have 50 inner steps. As in the paper
on DiLoCo, all ways begin with the weights after some synchronous steps (--first-steps), which count nowhere. Trainings
run side by side, as many as there are cores for; so their tokens per second are those of a busy machine.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchkit import diloco_loss, diloco_tables, machine
from benchkit.diloco_jobs import Order, Record, run_all
from benchkit.diloco_ways import EVERY, INT4, SYNCHRONOUS, WAYS, Way
from testkit.lifetimes import interrupt_on_sigterm
from testkit.places import ROOT

_SLOW_ROUNDS, _SLOW_SYNCHRONOUS_STEPS = 4, 40
_SLOW_LINK = "100 Mbit/s"
_WITH_LOSS = (SYNCHRONOUS.name, INT4.name)  # ways of which a worker is killed and another one joins


def main() -> int:
    options = parse(sys.argv[1:])
    interrupt_on_sigterm()
    began = time.monotonic()
    records = over_slow_links(options) if options.slow_link else on_this_host(options)
    about = {"machine": machine.facts(), "settings": machine.settings(), "every": EVERY, "workers": options.workers}
    about["first_steps"] = 0 if options.slow_link else options.first_steps
    about["seconds"] = time.monotonic() - began
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"about": about, "records": records}, indent=1) + "\n")
    shown = diloco_tables.slow_table(records) if options.slow_link else diloco_tables.table(records)
    print("", *shown, sep="\n")
    if not options.slow_link:
        print("", *diloco_tables.verdicts(records), sep="\n")
    print(f"\n{about['seconds']:.0f} s in all, load {os.getloadavg()[0]:.1f}; {options.output}")
    return 0 if len(records) == options.expected else 1


def on_this_host(options: argparse.Namespace) -> list[Record]:
    """Return the records of all ways and seeds, whose trainings run side by side."""
    with tempfile.TemporaryDirectory(prefix="bench-diloco-") as folder:
        starts = {seed: Path(folder) / f"start-{seed}.pt" if options.first_steps else None for seed in options.seeds}
        orders = [Order(way, seed, options.steps, starts[seed]) for seed in options.seeds for way in options.ways]
        # The synchronous trainings take longest, so they begin first.
        orders.sort(key=lambda order: order.way.rounds)
        options.expected = len(orders)
        run = functools.partial(
            run_all, workers=options.workers, limit_s=options.limit_s, say=say, at_once=options.jobs
        )
        if options.first_steps:
            first = [Order(SYNCHRONOUS, seed, options.first_steps, save=path) for seed, path in starts.items()]
            if len(run(first)) < len(first):
                return []
        return run(orders)


def over_slow_links(options: argparse.Namespace) -> list[Record]:
    """Return the records of all ways with one worker on each of several hosts behind slow links."""
    from benchkit.hosts import NamespaceHosts
    from benchkit.slow_hosts import LINKS, limit

    orders = [Order(way, options.seeds[0], slow_steps(way)) for way in options.ways]
    hosts = NamespaceHosts(options.workers)
    try:
        limit(hosts, LINKS[_SLOW_LINK])
        records = run_all(orders, options.workers, options.limit_s, say, hosts=hosts)
    finally:
        hosts.close()
    lossy = [way for way in options.ways if way.name in _WITH_LOSS]
    options.expected = len(orders) + len(lossy)
    for way in lossy:
        record = diloco_loss.measure(way, options.workers, LINKS[_SLOW_LINK].bits_per_s, options.window_s)
        say(
            f"{way.name}, elastic: {record['tokens_per_s']:,.0f} tokens/s; while a worker is killed and another joins "
            f"{record['tokens_per_s_with_loss']:,.0f} tokens/s, longest pause {record['longest_pause_s']:.1f} s"
        )
        records.append({"part": "loss", **record})
    return records


def slow_steps(way: Way) -> int:
    """Return the number of steps over a slow link: whole rounds, or fewer steps if each of them exchanges."""
    return _SLOW_ROUNDS * EVERY if way.rounds else _SLOW_SYNCHRONOUS_STEPS


def say(text: str) -> None:
    print(text, flush=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(number) for number in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=numbers, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=40 * EVERY, help="inner steps of each worker")
    parser.add_argument("--first-steps", type=int, default=1000, help="synchronous steps before the comparison")
    parser.add_argument("--only", help="names of ways separated by ';' (default: all)")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--jobs", type=int, help="trainings at once (default: as many as there are cores for)")
    parser.add_argument("--limit-s", type=float, default=500, help="of one training")
    parser.add_argument("--slow-link", action="store_true", help=f"hosts behind {_SLOW_LINK} instead")
    parser.add_argument("--window-s", type=float, default=25, help="seconds before and after a worker is killed")
    parser.add_argument("--output", type=Path, help="default: build/benchmarks/diloco.json, diloco-slow-link.json")
    options = parser.parse_args(arguments)
    named = {name.strip() for name in options.only.split(";")} if options.only else None
    if unknown := (named or set()) - {way.name for way in WAYS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {'; '.join(way.name for way in WAYS)}")
    options.ways = [way for way in WAYS if (way.name in named if named else options.slow_link or not way.only_slow)]
    name = "diloco-slow-link.json" if options.slow_link else "diloco.json"
    options.output = options.output or ROOT / "build" / "benchmarks" / name
    return options


if __name__ == "__main__":
    sys.exit(main())
