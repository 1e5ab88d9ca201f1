# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of an elastic job over a slow link, while all workers live, and while one is killed and one joins.

The workers are on one simulated host, and its loopback interface carries as much as all workers' links together.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testkit.hosts import Network
from testkit.launcher import HOROVODRUN
from testkit.places import BENCHMARKS, ROOT, python_path
from testkit.processes import Group

from benchkit.diloco_ways import Way
from benchkit.language_model import TOKENS_PER_STEP

Record = dict[str, Any]
Entry = dict[str, Any]
_HOST, _START_LIMIT_S, _LOOK_AGAIN_S = "site", 120.0, 0.05


def measure(way: Way, workers: int, bits_per_s: float, window_s: float) -> Record:
    """Return tokens per second in a window before a worker is killed, and in one that begins with its death."""
    network = Network([_HOST])
    folder = Path(tempfile.mkdtemp(prefix="bench-diloco-loss-"))
    try:
        rate = f"{workers * bits_per_s:.0f}bit"
        words = ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
        subprocess.run([*network.inside(_HOST), *words], check=True)
        # A host with a failed worker is used again after a second, so that another worker replaces the killed one.
        flags = ["-np", str(workers), "--min-np", "1", "--blacklist-cooldown-range", "1", "1"]
        program = [sys.executable, "-m", "benchkit.diloco_elastic_worker", way.name, str(folder)]
        env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(BENCHMARKS, ROOT), "HOROVOD_SHARED_MEMORY": "0"}
        with Group([*network.inside(_HOST), *HOROVODRUN, *flags, *program], env) as job:
            return _watch(job, folder, workers, window_s) | {"way": way.name, "workers": workers}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        network.close()


def _watch(job: Group, folder: Path, workers: int, window_s: float) -> Record:
    _wait_for(job, lambda: len({one["pid"] for one in entries(folder) if one["steps"]}) == workers)
    began = time.monotonic()
    time.sleep(window_s)
    pids = sorted({one["pid"] for one in entries(folder)})
    killed = time.monotonic()
    os.kill(pids[-1], signal.SIGKILL)
    time.sleep(window_s)
    _wait_for(job, lambda: any(one["pid"] not in pids and one["steps"] for one in entries(folder)))
    found = entries(folder)
    survivors = [pid for pid in pids if pid != pids[-1]]
    times = [[one["at"] for one in found if one["pid"] == pid and one["at"] >= killed - 1] for pid in survivors]
    return {
        "tokens_per_s": tokens_between(found, began, killed) / window_s,
        "tokens_per_s_with_loss": tokens_between(found, killed, killed + window_s) / window_s,
        "longest_pause_s": max(max(b - a for a, b in itertools.pairwise(own)) for own in times),
        "joined_after_s": min(one["at"] for one in found if one["pid"] not in pids and one["steps"]) - killed,
        "seconds": window_s,
    }


def entries(folder: Path) -> list[Entry]:
    """Return all complete lines of all workers."""
    lines = [line for path in folder.glob("worker-*") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.endswith("}")]


def tokens_between(found: list[Entry], begin: float, end: float) -> float:
    """Return the tokens that all workers trained on between two moments."""
    steps = 0
    for pid in {one["pid"] for one in found}:
        own = [one["steps"] for one in found if one["pid"] == pid and begin <= one["at"] <= end]
        steps += max(own) - min(own) if own else 0
    return steps * float(TOKENS_PER_STEP)


def _wait_for(job: Group, is_there: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _START_LIMIT_S
    while not is_there():
        if time.monotonic() > give_up or job.poll() is not None:
            raise RuntimeError(f"the elastic job did not get that far\n{job.printed()[-3000:]}")
        time.sleep(_LOOK_AGAIN_S)
