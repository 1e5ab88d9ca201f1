# SPDX-License-Identifier: Apache-2.0
"""Jobs for benchmarks/elastic.py: starting them, causing faults, and reading when their workers did what."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from testkit.families import is_alive
from testkit.launcher import HOROVODRUN
from testkit.places import BENCHMARKS, ROOT, python_path
from testkit.processes import Group
from testkit.ssh import SshHosts

Entry = dict[str, Any]
_LOOK_AGAIN_S = 0.01
_LIMIT_S = 300.0


class Job:
    """Command that starts workers of benchkit/elastic_worker.py. `more`: additional environment variables."""

    def __init__(self, kind: str, launcher: Sequence[str], more: Mapping[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hvd-elastic-"))
        worker = [str(BENCHMARKS / "benchkit" / "elastic_worker.py"), kind, str(self.folder)]
        env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": python_path(ROOT, BENCHMARKS)}
        self.process = Group([*launcher, *worker], env=env | dict(more or {}))

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.end()
        shutil.rmtree(self.folder)

    def entries(self) -> list[Entry]:
        return [
            json.loads(line)
            for path in self.folder.glob("worker-*")
            for line in path.read_text().splitlines()
            if line.endswith("}")
        ]

    def generation(self, least: int, size: int | None = None) -> list[Entry]:
        """Wait for a generation of at least this number, and of this size, to step; return its entries by rank."""

        def whole() -> list[Entry] | None:
            found: dict[int, list[Entry]] = {}
            for entry in self.entries():
                if entry.get("generation", -1) >= least and size in (None, entry["size"]):
                    found.setdefault(entry["generation"], []).append(entry)
            done = [workers for _, workers in sorted(found.items()) if len(workers) == workers[0]["size"]]
            return sorted(done[0], key=lambda one: int(one["rank"])) if done else None

        return self.wait_for(whole)

    def newest(self) -> int:
        """Return the newest generation that has trained; 0 if none has yet."""
        return max((int(one["generation"]) for one in self.entries() if "generation" in one), default=0)

    def await_asking(self, count: int) -> None:
        """Wait until this many workers in total have reached their first hvd.init()."""
        self.wait_for(lambda: sum("asks" in one for one in self.entries()) >= count)

    def wait_for(self, found: Callable[[], Any]) -> Any:
        give_up = time.monotonic() + _LIMIT_S
        while not (result := found()):
            if time.monotonic() > give_up:
                raise TimeoutError(f"not within {_LIMIT_S:g} s\n{self.process.account()}")
            time.sleep(_LOOK_AGAIN_S)
        return result


def elastic_job(workers: int, *flags: str, prefix: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Job:
    """Return an elastic job that uses hosts again 1 s after a failure, because workers are killed on purpose."""
    patient = ("--blacklist-cooldown-range", "1", "1")
    command = [*prefix, *HOROVODRUN, "-np", str(workers), "--min-np", "1", *patient, *flags, sys.executable]
    return Job("elastic", command, env)


def static_job(workers: int) -> Job:
    return Job("static", [*HOROVODRUN, "-np", str(workers), sys.executable])


def torchrun_job(workers: int, restarts: int) -> Job:
    """Return a torchrun job with a new store for each start; a shared one has addresses of workers that have ended."""
    flags = ["--standalone", "--nnodes=1", f"--nproc-per-node={workers}", f"--max-restarts={restarts}"]
    command = [sys.executable, "-m", "torch.distributed.run", *flags]
    return Job("torchrun", command, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})


def harm(worker: Entry, number: int = signal.SIGKILL) -> float:
    os.kill(worker["pid"], number)
    return time.monotonic()


PARTS = ("detect", "roll back", "meet", "sync", "first step")
Rounds = Iterable[int]  # as many numbers as there is time for rounds


def recoveries(
    job: Job, rounds: Rounds, workers: int, victim: Callable[[list[Entry], int], Entry], number: int, spares: int = 0
) -> list[dict[str, float]]:
    """Return for each round the seconds of each part of the recovery, and in total, of the slowest survivor.

    Every round begins when all workers train and the spares wait.
    """
    found = []
    last = job.newest()
    job.generation(last, workers)  # starting the workers is not part of the first round
    for round_ in rounds:
        now = job.generation(last, workers)
        job.await_asking(workers + spares + round_ if spares else 0)
        time.sleep(random.uniform(0.2, 0.5))  # a random moment of a step
        hit = victim(now, round_)
        began = harm(hit, number)
        after = job.generation(now[0]["generation"] + 1)
        found.append(parts_of(after, began) | {"size": len(after), "rank": hit["rank"]})
        last = after[0]["generation"]
    return found


def parts_of(after: list[Entry], began: float) -> dict[str, float]:
    """Return the seconds of each part of a recovery that began with a loss."""
    slowest = max((one for one in after if "raised" in one), key=lambda one: float(one["at"]))
    ends = [slowest[name] for name in ("raised", "restored", "met", "synced", "at")]
    parts = {name: end - start for name, start, end in zip(PARTS, [began, *ends], ends, strict=False)}
    return parts | {"detected": ends[0] - began, "resume": slowest["at"] - began}


def growths(rounds: Rounds) -> list[dict[str, float]]:
    """Let two workers join two others; return for how long these pause. They must not be restarted."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        slots = Path(folder) / "slots"
        offer(slots, 2)
        script = ("--max-np", "4", "--host-discovery-script", f"cat {slots}")
        with elastic_job(2, *script) as job:
            few = job.generation(0, 2)
            for _ in rounds:
                offer(slots, 4)
                many = job.generation(few[0]["generation"] + 1, 4)
                old = [one for one in many if one["pid"] in {one["pid"] for one in few}]
                assert len(old) == 2, "those who were there have been started again"
                times = many[0]["generation"] - few[0]["generation"]
                found.append({"pause": max(one["at"] - one["last_step"] for one in old), "interruptions": times})
                offer(slots, 2)
                few = job.generation(many[0]["generation"] + 1, 2)
    return found


def offer(path: Path, count: int) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(f"localhost:{count}\n")
    draft.rename(path)


def torchrun_restarts(rounds: Rounds, workers: int) -> list[dict[str, float]]:
    found = []
    with torchrun_job(workers, restarts=1000) as job:
        job.generation(0, workers)
        for generation in rounds:
            now = job.generation(generation, workers)
            time.sleep(random.uniform(0.2, 0.5))
            began = harm(random.choice(now))
            after = job.generation(generation + 1, workers)
            found.append({"resume": max(one["at"] for one in after) - began})
    return found


def static_losses(rounds: Rounds, workers: int) -> list[dict[str, float]]:
    """Return the seconds until all survivors of a killed rank have raised an error."""
    found = []
    for _ in rounds:
        with static_job(workers) as job:
            now = job.generation(0, workers)
            began = harm(random.choice(now))

            def all_told(job: Job = job) -> list[float] | None:
                told = [one["raised"] for one in job.entries() if "raised" in one]
                return told if len(told) == workers - 1 else None

            found.append({"detected": max(job.wait_for(all_told)) - began})
    return found


def lost_host(rounds: Rounds, workers: int) -> list[dict[str, float]]:
    """Disconnect the host of half of the workers; return the recovery's parts. Needs root and sshd."""
    found = []
    half = workers // 2
    for _ in rounds:
        with tempfile.TemporaryDirectory() as folder:
            hosts = SshHosts(["h1", "h2"], Path(folder))
            try:
                place = {"prefix": hosts.inside("h1"), "env": {"HOROVOD_SSH_COMMAND": hosts.ssh}}
                with elastic_job(workers, "-H", f"h1:{half},h2:{half}", "--start-timeout", "60", **place) as job:
                    job.generation(0, workers)
                    hosts.network.cut("h2")
                    began = time.monotonic()
                    found.append(parts_of(job.generation(1, half), began))
            finally:
                hosts.close()
    return found


def lost_launcher(job: Job) -> dict[str, float]:
    """Kill the launcher; return the seconds until no worker is left."""
    family = psutil.Process(job.process.pid).children(recursive=True)
    began = harm({"pid": job.process.pid})
    job.wait_for(lambda: not any(map(is_alive, family)))
    return {"detected": time.monotonic() - began}
