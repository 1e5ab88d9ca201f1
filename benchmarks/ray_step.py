#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare a training step of HorovodTrainer with one of Ray Train's own TorchTrainer, whose DDP uses Gloo.

    python benchmarks/ray_step.py            # the 161 tensors of ResNet-50 with hardly any compute, two workers
    python benchmarks/ray_step.py --workload resnet50

Both jobs stay alive and take turns of a few steps each. Prints a table and writes JSON lines. Fails if the two do not
end with equal weights, or if ours is not --target times as fast.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import ray
import ray.train
from benchkit import machine
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from rich.console import Console
from rich.table import Table

from horovod.ray import HorovodTrainer

WAYS = ("horovod", "torch")
_LEARNING_RATE = 1e-4
_LIMIT_S = 1200.0


class Turns:
    """Order of the turns: an actor that all workers of both jobs ask."""

    def __init__(self, workers: int, rounds: int) -> None:
        self.workers = workers
        # The first turn of each way warms up. After that each way begins as often as it comes second.
        self.order = [way for turn in range(1 + rounds) for way in (WAYS if turn % 2 == 0 else WAYS[::-1])]
        self.times: dict[str, list[list[list[float]]]] = {way: [] for way in WAYS}  # seconds by turn, worker and step
        self.weights: dict[str, set[str]] = {way: set() for way in WAYS}
        self.now = 0
        self.ready: list[str] = []
        self.moved = asyncio.Condition()

    async def wait(self, way: str, turn: int) -> bool:
        """Wait until all workers are ready and this turn of `way` begins. Return False if there are no more turns."""
        mine = [place for place, other in enumerate(self.order) if other == way]
        if turn >= len(mine):
            return False
        async with self.moved:
            if turn == 0:
                self.ready.append(way)
                self.moved.notify_all()
            await self.moved.wait_for(lambda: len(self.ready) == self.workers * len(WAYS) and self.now == mine[turn])
        return True

    async def done(self, way: str, turn: int, seconds: list[float], weights: str) -> None:
        async with self.moved:
            if len(self.times[way]) == turn:
                self.times[way].append([])
            self.times[way][turn].append(seconds)
            self.weights[way].add(f"{turn} {weights}")
            if len(self.times[way][turn]) == self.workers:
                self.now += 1
                self.moved.notify_all()

    async def results(self) -> tuple[dict[str, list[list[list[float]]]], dict[str, set[str]]]:
        return self.times, self.weights


def train(config: dict[str, Any]) -> None:
    """Train in one worker of either job."""
    import torch
    from benchkit.workloads import build

    torch.set_num_threads(1)
    model, inputs = build(config["workload"], ray.train.get_context().get_world_rank(), config["batch"])
    trained, optimizer = model, torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
    if config["way"] == "horovod":
        import horovod.torch as hvd

        hvd.init()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    else:
        trained = ray.train.torch.prepare_model(model)
    turns, turn = config["turns"], 0
    while ray.get(turns.wait.remote(config["way"], turn)):
        seconds = []
        for _ in range(config["steps"]):
            begun = time.perf_counter()
            optimizer.zero_grad()
            trained(*inputs).backward()
            optimizer.step()
            seconds.append(time.perf_counter() - begun)
        digest = hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in model.parameters()))
        ray.get(turns.done.remote(config["way"], turn, seconds, digest.hexdigest()))
        turn += 1


def run(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run both jobs side by side. Return the times and weights of their workers."""
    ray.init(num_cpus=2 * options.np, log_to_driver=options.verbose)
    turns = ray.remote(num_cpus=0)(Turns).remote(options.np, options.rounds)
    failures: list[BaseException] = []

    def fit(way: str) -> None:
        trainer = (HorovodTrainer if way == "horovod" else TorchTrainer)(
            train,
            train_loop_config={**vars(options), "output": "", "way": way, "turns": turns},
            scaling_config=ScalingConfig(num_workers=options.np),
            run_config=RunConfig(name=f"ray-step-{way}-{os.getpid()}", storage_path=str(options.output.resolve())),
        )
        try:
            trainer.fit()
        except BaseException as error:
            failures.append(error)

    jobs = [threading.Thread(target=fit, args=[way], daemon=True) for way in WAYS]
    for job in jobs:
        job.start()
    until = time.monotonic() + _LIMIT_S
    while any(job.is_alive() for job in jobs) and not failures and time.monotonic() < until:
        time.sleep(0.5)
    if failures or any(job.is_alive() for job in jobs):
        raise RuntimeError(f"a job failed, or took more than {_LIMIT_S:g} s: {failures}")
    times, weights = ray.get(turns.results.remote())
    ray.shutdown()
    return times, weights


def rows_of(times: dict[str, Any], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row for each way. A step takes as long as its slowest worker; the first turn warms up."""
    steps = {
        way: [max(worker[step] for worker in turn) for turn in found[1:] for step in range(options.steps)]
        for way, found in times.items()
    }
    step_ms = {way: median(found) * 1e3 for way, found in steps.items()}
    return [
        {
            "way": way,
            "workload": options.workload,
            "workers": options.np,
            "step_ms": step_ms[way],
            "best_ms": min(steps[way]) * 1e3,
            "steps": len(steps[way]),
            "ratio": step_ms["torch"] / step_ms[way],
        }
        for way in WAYS
    ]


def main() -> int:
    options = parse()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    facts = machine.facts()
    options.output.mkdir(parents=True, exist_ok=True)
    times, weights = run(options)
    rows = rows_of(times, options)
    table = Table(title=f"A step of {options.workload}, {options.np} workers of Ray Train", title_justify="left")
    for heading in ("trainer", "step (median)", "best", "times as fast as TorchTrainer"):
        table.add_column(heading, justify="left" if heading == "trainer" else "right")
    for row in rows:
        name = "HorovodTrainer" if row["way"] == "horovod" else "TorchTrainer (Gloo)"
        table.add_row(name, f"{row['step_ms']:.1f} ms", f"{row['best_ms']:.1f} ms", f"{row['ratio']:.2f}")
    console.print(table)
    path = options.output / "ray_step.jsonl"
    path.write_text("".join(json.dumps({**row, "machine": facts}) + "\n" for row in rows))
    console.print(f"[dim]{path}; load before the run {facts['load_before']}")
    if weights["horovod"] != weights["torch"]:
        console.print("[red]the two trainers do not end with the same weights")
        return 1
    return 0 if rows[0]["ratio"] >= options.target else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=2, help="workers of each job (default 2)")
    parser.add_argument("--workload", default="tensors", help="tensors (default), resnet50 or gpt")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10, help="in each turn of a round")
    parser.add_argument("--target", type=float, default=0.0, help="fail below this ratio to TorchTrainer")
    parser.add_argument("--verbose", action="store_true", help="show what Ray and the workers print")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks"), metavar="DIR")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
