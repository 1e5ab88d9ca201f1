# SPDX-License-Identifier: Apache-2.0
"""Jobs of benchmarks/diloco.py: several at once, each on cores of its own."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testkit.places import BENCHMARKS, ROOT, python_path
from testkit.processes import Group
from testkit.variables import of_ranks

from benchkit.diloco_ways import Way
from benchkit.hosts import NamespaceHosts
from benchkit.language_model import TOKENS_PER_STEP

Record = dict[str, Any]
_LOOK_AGAIN_S = 0.05


@dataclass(frozen=True)
class Order:
    """One training.

    Args:
        way: How the workers train.
        seed: What the batches depend on.
        steps: Number of inner steps.
        start: File with the weights to begin with; None for random ones.
        save: File for the weights of a training that precedes the comparison; None for the comparison itself.
    """

    way: Way
    seed: int
    steps: int
    start: Path | None = None
    save: Path | None = None


class Job:
    """Workers of one training. `hosts`: one worker on each, instead of all on this host."""

    def __init__(self, order: Order, workers: int, cores: Sequence[int], hosts: NamespaceHosts | None = None) -> None:
        self.order, self.workers, self.cores = order, workers, list(cores)
        self._folder = Path(tempfile.mkdtemp(prefix="bench-diloco-"))
        self._processes: list[Group] = []
        address = hosts.address(0) if hosts else "127.0.0.1"
        # Bytes are counted on TCP connections, so ranks of one host use no shared memory.
        shared = {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(BENCHMARKS, ROOT), "HOROVOD_SHARED_MEMORY": "0"}
        shared |= {"GLOO_SOCKET_IFNAME": hosts.interface if hosts else "lo"}
        words = [order.way.name, str(self._folder), "--seed", str(order.seed), "--steps", str(order.steps)]
        words += ["--start", str(order.start)] if order.start else []
        words += ["--save", str(order.save)] if order.save else []
        for rank, own in enumerate(of_ranks(workers, 1 if hosts else workers, address)):
            place = {"HOROVOD_HOSTNAME": hosts.name(rank), "BENCH_INTERFACE": hosts.interface} if hosts else {}
            pin = ["--cores", ",".join(map(str, self.cores))] if self.cores else []
            command = [*(hosts.inside(rank) if hosts else []), sys.executable, "-m", "benchkit.diloco_worker", *words]
            self._processes.append(Group([*command, *pin], own | shared | place))
        self.give_up = 0.0

    def ended(self) -> bool:
        """Return True once all workers have ended; raise RuntimeError as soon as one has failed or time is up."""
        codes = [process.poll() for process in self._processes]
        if any(codes) or (None in codes and time.monotonic() > self.give_up):
            logs = "\n".join(process.printed()[-3000:] for process in self._processes)
            reason = f"exit codes {codes}" if any(codes) else "out of time"
            raise RuntimeError(f"{self.order.way.name}, seed {self.order.seed}: {reason}\n{logs}")
        return None not in codes

    def record(self) -> Record:
        """Return what the workers found; raise RuntimeError if their weights differ."""
        found = [json.loads(path.read_text()) for path in sorted(self._folder.glob("found-*.json"))]
        if len(found) != self.workers or len({one["weights"] for one in found}) != 1:
            raise RuntimeError(f"{self.order.way.name}: the workers hold different weights after training")
        seconds = max(one["seconds"] for one in found)
        record: Record = {"way": self.order.way.name, "seed": self.order.seed, "steps": self.order.steps}
        record |= {"loss": found[0]["loss"], "seconds": seconds, "workers": self.workers, "torch": found[0]["torch"]}
        record |= {"tokens": self.order.steps * self.workers * TOKENS_PER_STEP, "parameters": found[0]["parameters"]}
        record["tokens_per_s"] = record["tokens"] / seconds
        for name in found[0]["bytes"]:
            record[name] = sum(one["bytes"][name] for one in found) / self.workers  # mean over the workers
        record["interface_bytes"] = sum(one["interface_bytes"] for one in found) / self.workers
        return record

    def close(self) -> None:
        for process in self._processes:
            process.end()
        shutil.rmtree(self._folder, ignore_errors=True)


def run_all(
    orders: Sequence[Order],
    workers: int,
    limit_s: float,
    say: Callable[[str], None],
    at_once: int | None = None,
    hosts: NamespaceHosts | None = None,
) -> list[Record]:
    """Run all orders, as many at once as there are cores for; return the records of those that did not fail."""
    cores = sorted(os.sched_getaffinity(0))
    fitting = max(1, len(cores) // workers)
    at_once = 1 if hosts else at_once or fitting
    pinned = [cores[first * workers : (first + 1) * workers] for first in range(fitting)]
    free = pinned[:at_once] if at_once <= fitting and len(cores) >= workers else [[] for _ in range(at_once)]
    waiting, running, records = list(orders), [], []
    try:
        while waiting or running:
            while waiting and free:
                running.append(Job(waiting.pop(0), workers, free.pop(0), hosts))
                running[-1].give_up = time.monotonic() + limit_s
            for job in list(running):
                record = _outcome(job, say)
                if record is not None:
                    running.remove(job)
                    job.close()
                    free.append(job.cores)
                    records += [record] if record else []
            time.sleep(_LOOK_AGAIN_S)
    finally:
        for job in running:
            job.close()
    return records


def _outcome(job: Job, say: Callable[[str], None]) -> Record | None:
    """Return the record of a job that has ended, an empty one if it failed, and None while it runs."""
    try:
        if not job.ended():
            return None
        record = job.record()
    except RuntimeError as error:
        say(f"left out: {error}")
        return {}
    say(
        f"{record['way']}, seed {record['seed']}: loss {record['loss']:.4f}, {record['seconds']:.0f} s, "
        f"{record['tokens_per_s']:,.0f} tokens/s, load {os.getloadavg()[0]:.1f}"
    )
    return record
