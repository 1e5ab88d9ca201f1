#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many hosts, simulated on this machine: ranks that share no memory unless they are on one host, and speak TCP.

    python benchmarks/many_hosts.py                                  # 32 hosts of 2, then every algorithm at 4 to 32
    python benchmarks/many_hosts.py --hosts 4 8 --sizes 1024 1048576 # fewer hosts, other sizes
    python benchmarks/many_hosts.py --skip-check

First a world of 32 hosts with two ranks each: that it starts, that every collective is right, and what it costs each
rank: connections (streams between hosts) and memory. Then allreduce by each algorithm between hosts, with one rank on
each: microseconds by size. All ranks share the cores and the memory of this machine, so that algorithms can be compared
with each other, and with nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from testkit.meeting import Meeting
from testkit.places import ROOT, python_path
from testkit.processes import Group, accounts, wait_for_all

ALGORITHMS = ("direct", "ring", "doubling")
_LIMIT_S = 300
_ORDERS = "MANY_HOSTS_ORDERS"  # what a worker is to do, as JSON


def main() -> int:
    if _ORDERS in os.environ:
        return work(json.loads(os.environ[_ORDERS]))
    options = parse()
    if not options.skip_check:
        check(options.check_hosts)
    for hosts in options.hosts:
        compare(hosts, options)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[4, 8, 16, 32], help="with one rank each")
    parser.add_argument("--sizes", type=int, nargs="+", help="bytes", default=[4 << (2 * power) for power in range(13)])
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--check-hosts", type=int, default=32, help="hosts of two ranks in the first part")
    parser.add_argument("--skip-check", action="store_true", help="only the comparison")
    return parser.parse_args()


def check(hosts: int) -> None:
    began = time.monotonic()
    told = run_world(hosts, 2, "auto", {"check": True})
    print(f"{hosts} hosts of 2 ranks: every collective right on every rank, {time.monotonic() - began:.1f} s in all")
    for column, unit in (("start_s", "s"), ("streams_after_allreduce", ""), ("streams", ""), ("pss_mb", "MB")):
        values = sorted(rank[column] for rank in told)
        of_leader = told[0][column]
        print(
            f"  {column:24} {unit:3} least {values[0]:8.1f}  median {median(values):8.1f}  most {values[-1]:8.1f}  "
            f"rank 0 {of_leader:8.1f}"
        )


def compare(hosts: int, options: argparse.Namespace) -> None:
    orders = {"sizes": options.sizes, "rounds": options.rounds}
    told = {algorithm: run_world(hosts, 1, algorithm, orders) for algorithm in options.algorithms}
    print(f"\n{hosts} hosts of 1 rank, allreduce of float32, microseconds (median of {options.rounds})")
    print(f"{'bytes':>12}" + "".join(f"{algorithm:>12}" for algorithm in told))
    for index, size in enumerate(options.sizes):
        print(f"{size:12}" + "".join(f"{ranks[0]['times_us'][index]:12.0f}" for ranks in told.values()), flush=True)
    print(f"{'streams':>12}" + "".join(f"{ranks[-1]['streams']:12}" for ranks in told.values()))


def run_world(hosts: int, ranks: int, algorithm: str, orders: dict[str, object]) -> list[dict[str, float]]:
    """What each rank tells of itself, by rank."""
    meeting = Meeting(",".join(f"host{number}:{ranks}" for number in range(hosts)))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.callback(meeting.close)
        common = {
            "HOROVOD_HOST_ALGORITHM": algorithm,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": python_path(ROOT),
            _ORDERS: json.dumps(orders | {"folder": folder}),
        }
        processes = [
            stack.enter_context(Group([sys.executable, __file__], env=meeting.environment(slot) | common))
            for slot in meeting.slots
        ]
        codes = wait_for_all(processes, _LIMIT_S)
        assert not any(codes), accounts(processes)
        return [json.loads((Path(folder) / str(rank)).read_text()) for rank in range(hosts * ranks)]


def work(orders: dict[str, object]) -> int:
    """One rank."""
    import horovod.numpy as hvd

    began = time.monotonic()
    hvd.init()
    told: dict[str, object] = {"start_s": time.monotonic() - began}
    if orders.get("check"):
        told |= collectives_are_right()
    else:
        told["times_us"] = [time_of(size, int(str(orders["rounds"]))) for size in sizes_of(orders)]
    told |= {"streams": streams(), "pss_mb": pss_mb()}
    hvd.barrier()
    (Path(str(orders["folder"])) / str(hvd.rank())).write_text(json.dumps(told))
    hvd.shutdown()
    return 0


def sizes_of(orders: dict[str, object]) -> list[int]:
    sizes = orders["sizes"]
    assert isinstance(sizes, list)
    return sizes


def time_of(size: int, rounds: int) -> float:
    import numpy as np

    import horovod.numpy as hvd

    data = np.zeros(size // 4, dtype=np.float32)
    times = []
    for _ in range(rounds + 2):
        hvd.barrier()
        began = time.perf_counter()
        hvd.allreduce(data, op=hvd.Sum, name=f"x{size}")
        times.append(time.perf_counter() - began)
    return median(times[2:]) * 1e6


def collectives_are_right() -> dict[str, object]:
    import numpy as np

    import horovod.numpy as hvd

    me, size = hvd.rank(), hvd.size()
    total = size * (size - 1) // 2
    for count in (1, 1000, 1_000_000):
        for dtype in ("int32", "float64"):
            result = hvd.allreduce(np.full(count, me, dtype=dtype), op=hvd.Sum, name=f"r.{count}.{dtype}")
            assert (result == total).all()
    after_allreduce = streams()
    rows = np.repeat(np.arange(size), [rank % 3 for rank in range(size)])
    assert (hvd.allgather(np.full((me % 3, 2), me)) == rows[:, None]).all()
    assert (hvd.broadcast(np.full(1000, me), root_rank=size - 1) == size - 1).all()
    received, splits = hvd.alltoall(np.full(size, me), splits=np.ones(size, dtype=np.int32))
    assert (received == np.arange(size)).all()
    assert (splits == 1).all()
    assert (hvd.reducescatter(np.full((size, 10), me), op=hvd.Sum) == total).all()
    return {"streams_after_allreduce": after_allreduce}


def streams() -> int:
    from horovod.common.context import default_context

    return int(json.loads(default_context.world.describe())["streams"])


def pss_mb() -> float:
    """Memory of this process, and its share of what it has in common with others."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    raise SystemExit(main())
