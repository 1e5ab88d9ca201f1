#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Simulate many hosts on this machine: ranks share memory only within a host, and use TCP between hosts.

    python benchmarks/many_hosts.py                                  # 32 hosts of 2, then every algorithm at 4 to 32
    python benchmarks/many_hosts.py --hosts 4 8 --sizes 1024 1048576 # fewer hosts, other sizes
    python benchmarks/many_hosts.py --skip-check

First starts a world of 32 hosts with two ranks each, and measures how long that takes, checks every collective against
NumPy, and counts each rank's connections (streams between hosts) and memory. Then measures allreduce by each algorithm
between hosts, with one rank on each (`--ranks`): microseconds by size. Takes under 3 minutes on 16 cores, without root
or network namespaces.

All ranks share the cores and the memory of this machine, without the latency of a network. The tables therefore also
say which algorithm would be ahead if each message in a chain took longer, by `--network-us`. Also writes everything to
build/benchmarks/many_hosts.jsonl (`--output`), one JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchkit import machine
from benchkit.many_hosts_worker import ORDERS
from testkit.lifetimes import interrupt_on_sigterm
from testkit.meeting import Meeting
from testkit.places import BENCHMARKS, ROOT, python_path
from testkit.processes import Group, accounts, wait_for_all

ALGORITHMS = ("direct", "ring", "doubling")
_LIMIT_S = 300
_WHOLE_BYTES = 16 << 10  # bytes up to which doubling sends a whole tensor at once, not halves of it
_COLUMNS = {"start_s": "s to init()", "first_s": "s to first result", "pss_mb": "MB of memory"}
_COLUMNS |= {"streams_after_allreduce": "streams, allreduces only", "streams": "streams, all collectives"}
Told = list[dict[str, Any]]


def main() -> int:
    options = parse()
    interrupt_on_sigterm()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with options.output.open("w", encoding="utf-8") as file:

        def write(record: Mapping[str, Any]) -> None:
            print(json.dumps(record), file=file, flush=True)

        began = time.monotonic()
        write({"machine": machine.facts(), "rounds": options.rounds})
        if not options.skip_check:
            write(check(options.check_hosts))
        for hosts in options.hosts:
            for record in compare(hosts, options):
                write(record)
        print(f"\n{time.monotonic() - began:.0f} s in all; {options.output}")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = [4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]
    parser.add_argument("--hosts", type=int, nargs="+", default=[4, 8, 16, 32], help="in the comparison")
    parser.add_argument("--ranks", type=int, default=1, help="on each of these hosts")
    parser.add_argument("--sizes", type=int, nargs="+", help="bytes", default=sizes)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--rounds", type=int, default=100, help="at most, of one size")
    parser.add_argument("--seconds", type=float, default=0.5, help="at most, for one size, but 3 rounds at least")
    parser.add_argument("--network-us", type=float, nargs="+", default=[0, 20, 50], help="latencies of a message")
    parser.add_argument("--check-hosts", type=int, default=32, help="hosts of two ranks in the first part")
    parser.add_argument("--skip-check", action="store_true", help="only the comparison")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "benchmarks" / "many_hosts.jsonl")
    return parser.parse_args()


def check(hosts: int) -> dict[str, Any]:
    began = time.monotonic()
    told = run_world(hosts, 2, "auto", {"check": True})
    took = time.monotonic() - began
    print(f"{hosts} hosts of 2 ranks: every collective right on every rank, {took:.1f} s in all\n")
    print(f"{'of a rank':28}{'least':>10}{'median':>10}{'most':>10}{'rank 0':>10}")
    record: dict[str, Any] = {"part": "check", "hosts": hosts, "ranks": 2, "seconds": took}
    for column, title in _COLUMNS.items():
        values = [rank[column] for rank in told]
        found = {"least": min(values), "median": median(values), "most": max(values), "rank 0": values[0]}
        record[column] = found
        print(f"{title:28}" + "".join(f"{value:10.1f}" for value in found.values()), flush=True)
    return record


def compare(hosts: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one record for each size, with the time of each algorithm."""
    orders = {"check": False, "sizes": options.sizes, "rounds": options.rounds, "seconds": options.seconds}
    told = {algorithm: run_world(hosts, options.ranks, algorithm, orders) for algorithm in options.algorithms}
    times = {algorithm: ranks[0]["times_us"] for algorithm, ranks in told.items()}
    print(f"\n{hosts} hosts of {options.ranks}, allreduce of float32: median microseconds; who is ahead with a network")
    print(f"{'bytes':>12}" + "".join(f"{way:>12}" for way in told) + titles(options.network_us))
    records = []
    for index, size in enumerate(options.sizes):
        of_size = {algorithm: times[algorithm][index] for algorithm in told}
        ahead = [fastest(of_size, hosts, size, delay) for delay in options.network_us]
        print(f"{size:12}" + "".join(f"{time:12.0f}" for time in of_size.values()) + "".join(f"{a:>14}" for a in ahead))
        record = {"part": "compare", "hosts": hosts, "ranks": options.ranks, "bytes": size, "us": of_size}
        records.append(record | {"ahead": dict(zip(map(str, options.network_us), ahead, strict=True))})
    streams = {algorithm: max(rank["streams"] for rank in ranks) for algorithm, ranks in told.items()}
    print(f"{'streams':>12}" + "".join(f"{most:12}" for most in streams.values()) + "   (most of any rank)", flush=True)
    return [*records, {"part": "streams", "hosts": hosts, "ranks": options.ranks, "most": streams}]


def titles(delays: Sequence[float]) -> str:
    return "".join(f"{f'+{delay:g} us':>14}" for delay in delays)


def fastest(times: Mapping[str, float], hosts: int, size: int, delay: float) -> str:
    return min(times, key=lambda algorithm: times[algorithm] + delay * messages_in_a_row(algorithm, hosts, size))


def messages_in_a_row(algorithm: str, hosts: int, size: int) -> int:
    """Return the length of the longest chain of messages in which each message waits for the one before it."""
    if algorithm == "direct":
        return 2
    if algorithm == "ring":
        return 2 * (hosts - 1)
    # Hosts beyond a power of two send their input to a partner and receive the result.
    paired = 2 * (hosts & (hosts - 1) != 0)
    return int(math.log2(hosts)) * (1 if size <= _WHOLE_BYTES else 2) + paired


def run_world(hosts: int, ranks: int, algorithm: str, orders: dict[str, Any]) -> Told:
    """Run a world on simulated hosts. Return the report of each rank, by rank."""
    meeting = Meeting(",".join(f"host{number}:{ranks}" for number in range(hosts)))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.callback(meeting.close)
        common = {
            "HOROVOD_HOST_ALGORITHM": algorithm,
            "HOROVOD_PEER_TIMEOUT_SECONDS": str(_LIMIT_S),  # ranks may wait long for a core
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": python_path(ROOT),
            ORDERS: json.dumps(orders | {"folder": folder}),
        }
        command = [sys.executable, str(BENCHMARKS / "benchkit" / "many_hosts_worker.py")]
        processes = [
            stack.enter_context(Group(command, env=meeting.environment(slot) | common)) for slot in meeting.slots
        ]
        codes = wait_for_all(processes, _LIMIT_S)
        failed = [process for process, code in zip(processes, codes, strict=True) if code]
        assert not failed, f"{len(failed)} ranks failed, among them\n{accounts(failed[:3])}"
        return [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(hosts * ranks)]


if __name__ == "__main__":
    raise SystemExit(main())
