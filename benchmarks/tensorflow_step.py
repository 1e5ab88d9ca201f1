#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What communication costs in a training step of a Keras network in a loop of one's own: ours against TensorFlow's.

    python benchmarks/tensorflow_step.py

The same step is run by ranks that send nothing (the bound), by horovod.tensorflow with its tape, and by
tf.distribute.MultiWorkerMirroredStrategy. One thread for each rank. All are alive throughout and take turns. The cost
of communication is a step's time above the bound. Prints a table and writes JSON lines.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import secrets
import selectors
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchkit import machine
from benchkit.lifetime import die_with_parent, end_group
from rich.console import Console
from rich.table import Table

WAYS = ("alone", "khorovod", "mirrored")
LIMIT_S = 300.0


class Team:
    """The ranks of one way to run the step."""

    def __init__(self, way: str, options: argparse.Namespace, cores: list[int]) -> None:
        self.way = way
        self.times: list[float] = []
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the ranks
        port = str(_free_port())
        shared = {
            "HOROVOD_SIZE": str(options.np),
            "HOROVOD_LOCAL_SIZE": str(options.np),
            "HOROVOD_RENDEZVOUS": "self",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
            "_HOROVOD_SECRET_KEY": base64.b64encode(secrets.token_bytes(32)).decode(),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "benchkit.tensorflow_step_worker", way]
        command += ["--ranks", str(options.np), "--port", port]
        for name in ("width", "layers", "batch"):
            command += [f"--{name}", str(getattr(options, name))]
        self.processes = []
        for rank in range(options.np):
            pin = ["taskset", "-c", str(cores[rank])] if cores else []
            own = {"HOROVOD_RANK": str(rank), "HOROVOD_LOCAL_RANK": str(rank)}
            self.processes.append(
                subprocess.Popen(
                    [*pin, *command, "--rank", str(rank)],
                    env={**os.environ, **shared, **own},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            )
        self.losses = [reply["loss"] for reply in self._replies()]

    def run(self, steps: int) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"run {steps}\n".encode())
            process.stdin.flush()
        everyone = [reply["times"] for reply in self._replies()]
        self.times += [max(times) for times in zip(*everyone, strict=True)]

    def _replies(self) -> list[Any]:
        return [json.loads(self._line(process)) for process in self.processes]

    def _line(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            line = process.stdout.readline() if selector.select(LIMIT_S) else b""
        if not line:
            self._log.seek(0)
            raise RuntimeError(f"{self.way}: a rank fell silent\n{self._log.read().decode(errors='replace')[-3000:]}")
        return line

    def stop(self) -> None:
        for process in self.processes:
            end_group(process)


def main() -> int:
    options = parse(sys.argv[1:])
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    before = machine.facts()
    cores = machine.cores_for(options.np)
    teams: list[Team] = []
    try:
        for way in WAYS:
            teams.append(Team(way, options, cores))
        check_losses(teams)
        for turn in range(options.rounds):
            for team in teams if turn % 2 == 0 else reversed(teams):
                team.run(options.steps)
    finally:
        for team in teams:
            team.stop()
    rows = summarise(teams)
    console.print(table(rows, options))
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "tensorflow_step.jsonl"
    about = {"ranks": options.np, "width": options.width, "layers": options.layers, "batch": options.batch}
    path.write_text("".join(json.dumps(row | about | {"machine": before}) + "\n" for row in rows))
    console.print(f"[dim]{path}; load before the run {before['load_before']}")
    return 0


def check_losses(teams: list[Team]) -> None:
    """Both ways of communicating must train the same model: the same loss after the same steps, on every rank."""
    ours, theirs = teams[1].losses, teams[2].losses
    if any(abs(one - other) > 1e-3 * abs(one) for one, other in zip(ours, theirs, strict=True)):
        raise RuntimeError(f"the two ways do not compute the same: losses {ours} and {theirs}")


def summarise(teams: list[Team]) -> list[dict[str, Any]]:
    bound = median(teams[0].times)
    mirrored_cost = median(teams[2].times) - bound
    rows = []
    for team in teams:
        step = median(team.times)
        row = {"way": team.way, "step_ms": step * 1e3, "best_ms": min(team.times) * 1e3, "steps": len(team.times)}
        row["communication_ms"] = (step - bound) * 1e3
        row["times_less_than_mirrored"] = mirrored_cost / (step - bound) if step > bound else None
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]], options: argparse.Namespace) -> Table:
    title = f"A step of {options.layers} dense layers of width {options.width}, {options.np} ranks (medians)"
    result = Table(title=title, title_justify="left")
    for heading in ("way", "step", "best", "communication", "cost of mirrored / cost"):
        result.add_column(heading, justify="left" if heading == "way" else "right")
    for row in rows:
        ratio = row["times_less_than_mirrored"]
        cost = "" if row["way"] == "alone" else f"{row['communication_ms']:.2f} ms"
        result.add_row(
            row["way"],
            f"{row['step_ms']:.2f} ms",
            f"{row['best_ms']:.2f} ms",
            cost,
            "" if row["way"] == "alone" or ratio is None else f"{ratio:.2f}",
        )
    return result


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32, help="images of each rank")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10, help="in each turn of a round")
    parser.add_argument("--output", type=Path, default=Path("build/benchmarks"), metavar="DIR")
    return parser.parse_args(arguments)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
