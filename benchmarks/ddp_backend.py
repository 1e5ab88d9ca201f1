#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the horovod backend of torch.distributed with Gloo: collectives of 25 MB, DistributedDataParallel steps.

    python benchmarks/ddp_backend.py

Both backends live in the same processes and take turns in every round. Prints a table with the ratio and its 95 %
interval, writes JSON lines, and fails unless DDP's parameters are equal with both backends, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchkit import machine
from benchkit.summary import ratio
from rich.console import Console
from rich.table import Table
from testkit.processes import Group
from testkit.variables import free_port

OURS, PEER = "horovod", "gloo"
MEGABYTES = 25
LIMIT_S = 900


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=4.0, help="time for one backend and problem, over all rounds")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks"), metavar="DIR")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse(sys.argv[1:])
    if "RANK" in os.environ:
        return measure_all(options)
    port = str(free_port())
    cores = machine.cores_for(options.np)
    ranks = []
    for rank in range(options.np):
        place = {"RANK": str(rank), "WORLD_SIZE": str(options.np), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        variables = {**place, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        ranks.append(Group([sys.executable, *sys.argv], variables, stdout=None, stderr=None))
        if cores:
            os.sched_setaffinity(ranks[-1].pid, {cores[rank]})
    try:
        return max(abs(process.wait(LIMIT_S)) for process in ranks)
    finally:
        for process in ranks:
            process.end()


# The part that runs in every rank.


def measure_all(options: argparse.Namespace) -> int:
    import torch
    import torch.distributed as dist

    import horovod.torch.distributed  # noqa: F401 - registers the backend

    torch.set_num_threads(1)
    dist.init_process_group(OURS)
    groups = {OURS: dist.group.WORLD, PEER: dist.new_group(backend=PEER)}
    rows = []
    for what, prepare in problems(torch, dist).items():
        steps = {name: prepare(group) for name, group in groups.items()}
        rounds = take_turns(dist, steps, options)
        rows.append({"what": what, **summarise(rounds)})
        for step in steps.values():
            outcome = getattr(step, "outcome", None)
            if outcome is not None:
                rows[-1].setdefault("outcomes", []).append(outcome())
    same = all(outcomes[0] == outcomes[1] for row in rows if (outcomes := row.pop("outcomes", None)))
    if dist.get_rank() == 0:
        report(rows, options, same)
    dist.destroy_process_group()
    return 0 if same else 1


def problems(torch: Any, dist: Any) -> dict[str, Callable[[Any], Any]]:
    """Return functions by name. Each takes a group and returns the step to time."""
    from benchkit.workloads import resnet50_shapes

    size, count = dist.get_world_size(), MEGABYTES * 1_000_000 // 4 // dist.get_world_size()
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    whole, part = torch.ones(count * size), torch.ones(count)
    small = torch.ones(1)
    return {
        "all_reduce of 4 B": lambda group: lambda: dist.all_reduce(small, group=group),
        f"all_reduce of {MEGABYTES} MB": lambda group: lambda: dist.all_reduce(whole, group=group),
        f"all_gather to {MEGABYTES} MB": lambda group: lambda: gather(whole, part, group=group),
        f"reduce_scatter of {MEGABYTES} MB": lambda group: lambda: scatter(part, whole, group=group),
        "DDP step, 161 tensors of ResNet-50": lambda group: DdpStep(torch, group, resnet50_shapes(), 0),
        "DDP step, convolutional network, 32 images": lambda group: DdpStep(torch, group, None, 32),
    }


class DdpStep:
    """Training with DistributedDataParallel; each call makes the next step."""

    def __init__(self, torch: Any, group: Any, shapes: list[Any] | None, images: int) -> None:
        torch.manual_seed(0)
        self._torch = torch
        model = Parameters(torch, shapes) if shapes is not None else convolutional(torch)
        self._model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        torch.manual_seed(1 + group.rank())
        self._inputs = torch.randn(max(images, 1), 3, 32, 32)

    def __call__(self) -> None:
        self._optimizer.zero_grad()
        self._model(self._inputs).square().mean().backward()
        self._optimizer.step()

    def outcome(self) -> list[float]:
        """Return the sum of each parameter after three steps from a fixed start."""
        self._torch.manual_seed(5)
        for parameter in self._model.parameters():
            parameter.data.normal_(0, 0.02)
        for _ in range(3):
            self()
        return [float(parameter.detach().double().sum()) for parameter in self._model.parameters()]


def Parameters(torch: Any, shapes: list[Any]) -> Any:  # noqa: N802 - makes a module
    """Return a module with tensors of these shapes and hardly any compute, so that DDP and the backend remain."""

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.tensors = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(shape)) for shape in shapes)

        def forward(self, inputs: Any) -> Any:
            scale = inputs.mean()
            return torch.stack([tensor.view(-1)[:1].sum() * scale for tensor in self.tensors])

    return Model()


def convolutional(torch: Any) -> Any:
    nn = torch.nn
    layers: list[Any] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 10))


def take_turns(dist: Any, steps: dict[str, Callable[[], None]], options: argparse.Namespace) -> dict[str, Any]:
    """Return the times of every backend by round: those of the slowest rank, with ranks that start together."""
    counts = {name: agreed_count(dist, step, options) for name, step in steps.items()}
    rounds: dict[str, list[list[float]]] = {name: [] for name in steps}
    for number in range(options.rounds):
        for name in list(steps) if number % 2 == 0 else list(reversed(list(steps))):
            rounds[name].append(slowest(dist, timed(dist, steps[name], counts[name])))
    return rounds


def agreed_count(dist: Any, step: Callable[[], None], options: argparse.Namespace) -> int:
    typical = median(slowest(dist, timed(dist, step, 3)))
    return int(min(200, max(1, options.seconds / options.rounds / typical)))


def timed(dist: Any, step: Callable[[], None], count: int) -> list[float]:
    times = []
    for _ in range(count):
        dist.barrier()
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return times


def slowest(dist: Any, times: list[float]) -> list[float]:
    of_all: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, times)
    return [max(together) for together in zip(*of_all, strict=True)]


# The part that runs in rank 0.


def summarise(rounds: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, times in rounds.items():
        found[f"{name}_ms"] = round(1e3 * median(value for turn in times for value in turn), 4)
    compared = ratio(rounds[OURS], rounds[PEER])
    return {**found, "ratio": compared.value, "low": compared.low, "high": compared.high}


def report(rows: list[dict[str, Any]], options: argparse.Namespace, same: bool) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    table = Table(title=f"torch.distributed, {options.np} ranks (medians)", title_justify="left")
    for heading in ("what", OURS, PEER, f"{PEER} takes x longer"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for row in rows:
        interval = f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        table.add_row(row["what"], f"{row[OURS + '_ms']:.3f} ms", f"{row[PEER + '_ms']:.3f} ms", interval)
    console.print(table)
    console.print("DDP's parameters over both backends: " + ("the same to the bit" if same else "[red]DIFFERENT"))
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "ddp_backend.jsonl"
    about = {"ranks": options.np, "rounds": options.rounds, "settings": machine.settings(), "machine": machine.facts()}
    path.write_text("".join(json.dumps(row | about) + "\n" for row in rows), encoding="utf-8")
    console.print(f"[dim]{path}")


if __name__ == "__main__":
    sys.exit(main())
