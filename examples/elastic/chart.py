# SPDX-License-Identifier: Apache-2.0
r"""Run an elastic example, kill some of its workers, and draw the loss and the number of workers over time.

python examples/elastic/chart.py --kills 4 --output chart.svg -- horovodrun -np 4 --min-np 2 \
    python examples/elastic/pytorch_digits.py --pause 0.03
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

try:
    import matplotlib as mpl
    import psutil
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}; this example needs: pip install khorovod matplotlib") from None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between two of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("elastic.svg"), help="a PNG or an SVG")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after --: the job")
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    with tempfile.TemporaryDirectory() as folder:
        job = subprocess.Popen([*command, "--output", folder])
        kills = kill_workers(job, Path(folder) / "progress.jsonl", options)
        code = job.wait()
        lines = (Path(folder) / "progress.jsonl").read_text().splitlines()
    draw([json.loads(line) for line in lines], kills, shlex.join(command), options.output)
    print(f"exit code {code}; {options.output}")
    return code


def kill_workers(job: subprocess.Popen[bytes], progress: Path, options: argparse.Namespace) -> list[float]:
    """Kill a worker in each interval, once training has begun. Return the times of the kills."""
    choice, times = random.Random(options.seed), []
    while len(times) < options.kills and job.poll() is None:
        time.sleep(options.interval if progress.exists() else 0.1)
        if not progress.exists():
            continue
        workers = [process for process in psutil.Process(job.pid).children(recursive=True) if is_worker(process)]
        if workers:
            os.kill(choice.choice(workers).pid, signal.SIGKILL)
            times.append(time.time())
    return times


def is_worker(process: psutil.Process) -> bool:
    try:
        return "HOROVOD_BIRTH_ID" in process.environ()
    except psutil.Error:
        return False


def draw(steps: list[dict[str, Any]], kills: list[float], title: str, path: Path) -> None:
    mpl.use("agg")
    from matplotlib import pyplot as plt

    plt.rcParams["svg.fonttype"] = "none"
    began = steps[0]["time"]
    times = [step["time"] - began for step in steps]
    figure, (losses, workers) = plt.subplots(2, 1, figsize=(8, 5), sharex=True, height_ratios=[2, 1])
    losses.plot(times, [step["loss"] for step in steps], color="#0072b2", linewidth=0.8)
    losses.set(ylabel="loss", yscale="log")
    workers.step(times, [step["workers"] for step in steps], where="post", color="#009e73")
    workers.set(xlabel="seconds", ylabel="workers", ylim=(0, max(step["workers"] for step in steps) + 0.5))
    for axes in (losses, workers):
        axes.grid(alpha=0.3)
        for number, moment in enumerate(kills):
            label = "kill -9" if number == 0 and axes is losses else None
            axes.axvline(moment - began, color="#d55e00", linestyle="--", linewidth=1, label=label)
    if kills:
        losses.legend()
    figure.suptitle(title, fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
