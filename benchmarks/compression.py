#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what compression saves on slow links between hosts: training steps of our methods and of DDP's hooks.

    sudo python benchmarks/compression.py            # about 10 minutes
    sudo python benchmarks/compression.py --quick    # a short look at small layers
    sudo python benchmarks/compression.py --write    # also store the results and renew docs/compression.md
    python benchmarks/compression.py --page          # measure nothing: the page again from the stored results

Uses 2 hosts with 2 ranks each, made of network namespaces behind 100 Mbit/s and 1 Gbit/s (`tc tbf` on both hosts), then
2 ranks on one host. The model has five layers of 2,000 x 2,000. All ways stay alive and take turns. Reports the step,
the part above a step without exchange, the bytes that a host sends, and the bandwidth below which each method is faster
than dense gradients.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchkit import compression_page, compression_results, machine
from benchkit.compression_ways import ALONE, BOUND, OURS, PEER, WAYS, Way
from benchkit.hosts import NamespaceHosts
from benchkit.libraries import Gloo, Khorovod
from benchkit.pairs import LEAST_PAIRS, cost_of
from benchkit.slow_hosts import LINKS, limit, tcp_bits_per_s
from benchkit.world import World
from testkit.lifetimes import interrupt_on_sigterm
from testkit.places import ROOT

Record = dict[str, Any]
HOSTS, RANKS_ON_A_HOST = 2, 2
_UNTIMED_BELOW_S = 1.0  # seconds; a turn of shorter steps begins with an untimed one, because caches are cold


@dataclass
class Runner:
    """Steps of one way in its world, and their number in a turn."""

    way: Way
    world: World
    count: int = 1
    untimed: int = 0

    def steps(self, interface: str) -> Record:
        """Make a turn. Return the median seconds of the slowest rank's steps, and the bytes of one step."""
        order = {"way": self.way.name, "count": self.count, "untimed": self.untimed, "interface": interface}
        answers = self.world.ask("steps", **order)
        slowest = [max(together) for together in zip(*(answer["seconds"] for answer in answers), strict=True)]
        on_first_host = answers[: self.world.hosts.neighbours if self.world.hosts else len(answers)]
        counted = sum(answer["rank_bytes"] for answer in on_first_host)
        found = {"host_bytes": answers[0]["host_bytes"], "counted_bytes": counted}
        return found | {"seconds": median(slowest), "cpu_s": max(answer["cpu_s"] for answer in answers)}


def main() -> int:
    options = parse(sys.argv[1:])
    if options.page:
        print(*compression_page.renew(), sep="\n")
        return 0
    interrupt_on_sigterm()
    records: list[Record] = []
    began = time.monotonic()
    about = {"machine": machine.facts(), "settings": machine.settings(), "rounds": options.rounds}
    about |= {name: getattr(options, name) for name in ("layers", "width", "batch")}
    about |= {"hosts": HOSTS, "ranks": HOSTS * RANKS_ON_A_HOST}
    if options.links:
        records += [{"part": "slow links", "about": about}, *between_hosts(options)]
    if not options.skip_one_host:
        about = about | {"machine": machine.facts()}
        records += [{"part": "one host", "about": about}, *on_one_host(options)]
    print("\n".join(compression_page.report(records)))
    compression_results.store(options.output, records)
    print(f"{time.monotonic() - began:.0f} s in all, load {os.getloadavg()[0]:.1f}; {options.output}")
    if options.write:
        compression_results.store(compression_results.path_for(machine.kind()), records)
        print(*compression_page.renew(), sep="\n")
    return 0


def between_hosts(options: argparse.Namespace) -> list[Record]:
    """Return the records of all links."""
    with ExitStack() as stack:
        hosts = NamespaceHosts(HOSTS, RANKS_ON_A_HOST)
        stack.callback(hosts.close)
        worlds = {}
        for name, kind in {OURS: Khorovod, PEER: Gloo}.items():
            worlds[name] = start(stack, kind(HOSTS * RANKS_ON_A_HOST, [], "tcp"), options, hosts)
        runners = build(worlds, options.ways)
        records = []
        for name in options.links:
            link = LINKS[name]
            limit(hosts, link)
            first, second = hosts.names
            streams = (first, second), (second, first)
            tcp = [tcp_bits_per_s(hosts.network, *ends, options.tcp_seconds) for ends in streams]
            print(f"{name} by tc tbf: a plain TCP stream gets {', '.join(f'{it / 1e6:.1f}' for it in tcp)} Mbit/s")
            part = {"part": "slow links", "link": name}
            records.append(part | {"tcp_bits_per_s": tcp, "bits_per_s": link.bits_per_s, "burst": link.burst})
            records += take_turns(runners, part, options, hosts.interface)
        check_weights(worlds.values())
        return records


def on_one_host(options: argparse.Namespace) -> list[Record]:
    """Return the records of two ranks that share memory."""
    with ExitStack() as stack:
        ranks = RANKS_ON_A_HOST
        worlds = {OURS: start(stack, Khorovod(ranks, machine.cores_for(ranks), "memory"), options, None)}
        runners = build(worlds, [way for way in options.ways if way.library != PEER])
        records = take_turns(runners, {"part": "one host", "ranks": ranks}, options, "")
        check_weights(worlds.values())
        return records


def start(stack: ExitStack, world: World, options: argparse.Namespace, hosts: NamespaceHosts | None) -> World:
    """Start the ranks of a library."""
    world.worker, world.hosts = "benchkit.compression_worker", hosts
    os.environ |= {f"BENCH_{name.upper()}": str(getattr(options, name)) for name in ("layers", "width", "batch")}
    stack.callback(world.stop)
    world.start()
    print(f"{world.ranks} ranks: {world.library}", flush=True)
    return world


def build(worlds: dict[str, World], ways: Sequence[Way]) -> list[Runner]:
    """Build each way in its world. Print and leave out a way that the library does not have."""
    runners = []
    for way in ways:
        world = worlds[OURS if way.library == ALONE else way.library]
        reasons = [answer.get("missing") for answer in world.ask("build", way=way.name)]
        if reasons[0]:
            print(f"{way.name} is left out: {reasons[0]}", flush=True)
        else:
            runners.append(Runner(way, world))
    return runners


def take_turns(runners: list[Runner], part: Record, options: argparse.Namespace, interface: str) -> list[Record]:
    """Let all ways make steps in every round. Return one record for each way."""
    for runner in runners:
        runner.count, runner.untimed = 1, 1 * (runner.way.library == ALONE)
        typical = runner.steps(interface)["seconds"]
        runner.count = max(1, min(options.steps, int(options.turn_seconds / typical)))
        runner.untimed = int(typical < _UNTIMED_BELOW_S)
    turns: dict[str, list[Record]] = {runner.way.name: [] for runner in runners}
    for number in range(options.rounds):
        first = number % len(runners)  # another way begins each round, because a way may profit from the one before it
        for runner in [*runners[first:], *runners[:first]]:
            turns[runner.way.name].append(runner.steps(interface))
        print(f"  round {number + 1} of {options.rounds}, load {os.getloadavg()[0]:.1f}", flush=True)
    bound = [turn["seconds"] for turn in turns[BOUND.name]]
    return [part | record_of(name, found, bound) for name, found in turns.items()]


def record_of(name: str, turns: list[Record], bound: list[float]) -> Record:
    """Return a way's medians, and the time of its steps above those without exchange, turn by turn."""
    found: Record = {"way": name, "step_s": median(turn["seconds"] for turn in turns)}
    for key in ("host_bytes", "counted_bytes", "cpu_s"):
        found[key] = median(turn[key] for turn in turns)
    if name != BOUND.name:
        cost = cost_of([turn["seconds"] - other for turn, other in zip(turns, bound, strict=True)])
        found["above_s"] = {"value": cost.value, "low": cost.low, "high": cost.high}
    found["turns_s"] = [round(turn["seconds"], 6) for turn in turns]
    return found


def check_weights(worlds: Any) -> None:
    """Raise RuntimeError unless all ranks of a world have equal weights after all these steps, bit for bit."""
    for world in worlds:
        answers = world.ask("weights")
        if len({answer["weights"] for answer in answers}) != 1:
            raise RuntimeError(f"{world.name}: the ranks have different weights")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small layers and few rounds")
    parser.add_argument("--links", nargs="*", choices=list(LINKS), default=list(LINKS))
    parser.add_argument("--skip-one-host", action="store_true")
    parser.add_argument(
        "--ways", help="names separated by ';' (default: all); the step without exchange is always there"
    )
    parser.add_argument("--rounds", type=int, help=f"turns of each way (default {2 * LEAST_PAIRS - 4}; quick: 2)")
    parser.add_argument("--steps", type=int, default=5, help="most steps of a turn")
    parser.add_argument("--turn-seconds", type=float, default=2.0, help="as many steps as fit, but at least one")
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--width", type=int, help="of a layer (default 2000; quick: 500)")
    parser.add_argument("--batch", type=int, default=16, help="rows of a rank's step")
    parser.add_argument("--tcp-seconds", type=float, default=2.0, help="of the plain TCP stream that checks a link")
    parser.add_argument("--write", action="store_true", help="into benchmarks/results and docs/compression.md")
    parser.add_argument("--page", action="store_true", help="only make the page's tables and plots again")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "benchmarks" / "compression.jsonl")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (2 if options.quick else 2 * LEAST_PAIRS - 4)
    options.width = options.width or (500 if options.quick else 2000)
    names = [name.strip() for name in options.ways.split(";")] if options.ways else [way.name for way in WAYS]
    if unknown := {*names} - {way.name for way in WAYS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {'; '.join(way.name for way in WAYS)}")
    options.ways = [way for way in WAYS if way.name in names or way.library == ALONE]
    return options


if __name__ == "__main__":
    sys.exit(main())
