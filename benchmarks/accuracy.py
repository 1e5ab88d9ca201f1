#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the accuracy of the digits example without Horovod and on 1, 2 and 4 workers, with equal global batches.

    python benchmarks/accuracy.py            # a few minutes; writes docs/accuracy.md and docs/accuracy.svg

Uses three seeds. Needs `pip install "khorovod[examples]"`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean

from benchkit.examples import example
from testkit.launcher import HOROVODRUN
from testkit.places import ROOT
from testkit.processes import Process

GLOBAL_BATCH, LEARNING_RATE, LIMIT_S = 64, 0.02, 3600

_PAGE = """# Accuracy

Made by `python benchmarks/accuracy.py`; do not edit.

Adding Horovod to a script does not change its accuracy.
The digits example was trained without Horovod, and with it on 1, 2 and 4 workers.
All runs have a global batch of {batch}, one learning rate, {epochs} epochs, and the seeds {seeds}.
Validation uses the 360 digits that training never sees.

![validation loss by epoch, and its difference from the run without Horovod](accuracy.svg)

{table}

In each step, the workers together read the digits that the single process reads.
So their average gradient is that of the single process, up to rounding.
A sum of four parts rounds differently from a single sum.
Such differences start at the seventh digit and grow with the steps, as with another processor or another BLAS.
For comparison, the best and the worst of the {count} seeds without Horovod differ by {spread:.4f}.
"""


@dataclass
class Curve:
    """Validation results after each epoch of one training. `workers` is 0 for a training without Horovod."""

    workers: int
    seed: int
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)


def train(seed: int, epochs: int, with_horovod: bool) -> Curve:
    """Train once in this rank."""
    import torch

    import horovod.torch as hvd

    digits = example("pytorch", "digits_dataset")
    torch.manual_seed(seed)
    training, validation = digits.load()
    loader = digits.training_loader(training, GLOBAL_BATCH // hvd.size(), seed)
    model = digits.DigitsNet()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    if with_horovod:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    curve = Curve(hvd.size() if with_horovod else 0, seed)
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        loss, accuracy = digits.validate(model, validation, torch.device("cpu"))
        curve.losses.append(loss)
        curve.accuracies.append(accuracy)
    return curve


def work(options: argparse.Namespace) -> None:
    """Train with all seeds in this rank, so that processes start once for each number of workers."""
    import horovod.torch as hvd

    hvd.init()
    ways = (False, True) if hvd.size() == 1 else (True,)
    curves = [train(seed, options.epochs, way) for way in ways for seed in options.seeds]
    if hvd.rank() == 0:
        options.worker.write_text(json.dumps([asdict(curve) for curve in curves]))
    hvd.shutdown()


def measure(workers: int, options: argparse.Namespace) -> list[Curve]:
    with tempfile.TemporaryDirectory(prefix="accuracy-") as folder:
        result = Path(folder) / "curves.json"
        seeds = ",".join(map(str, options.seeds))
        command = [sys.executable, __file__, "--worker", str(result), "--epochs", str(options.epochs), "--seeds", seeds]
        # One thread for each rank, because the number of threads that compute a sum changes its rounding.
        one_thread = {"OMP_NUM_THREADS": "1"}
        with Process([*HOROVODRUN, "-np", str(workers), *command], one_thread, stdout=None, stderr=None) as job:
            if job.wait(LIMIT_S) != 0:
                raise RuntimeError(f"the training on {workers} workers failed; its error is above")
        return [Curve(**one) for one in json.loads(result.read_text())]


def label(workers: int) -> str:
    return "without Horovod" if workers == 0 else f"{workers} worker{'s' * (workers > 1)}"


def differences(curves: list[Curve], plain: dict[int, Curve]) -> list[float]:
    """Return the differences from the losses without Horovod for the same seed, at every epoch."""
    return [
        loss - reference
        for curve in curves
        for loss, reference in zip(curve.losses, plain[curve.seed].losses, strict=True)
    ]


def table(curves: dict[int, list[Curve]]) -> str:
    plain = {curve.seed: curve for curve in curves[0]}
    lines = [
        "| | final loss (each seed) | mean | final accuracy | largest difference at any epoch |",
        "|---|---|---|---|---|",
    ]
    for workers, found in curves.items():
        finals = [curve.losses[-1] for curve in found]
        accuracy = mean(curve.accuracies[-1] for curve in found)
        away = max(map(abs, differences(found, plain)))
        shown = "none" if workers == 0 else f"{away:.2g}" if away else "0"
        each = ", ".join(f"{loss:.5f}" for loss in finals)
        lines.append(f"| {label(workers)} | {each} | {mean(finals):.5f} | {accuracy:.2%} | {shown} |")
    return "\n".join(lines)


def save_plot(path: Path, curves: dict[int, list[Curve]]) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "accuracy"}
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    plain = {curve.seed: curve for curve in curves[0]}
    styles = {0: ("#000000", 5.0), 1: ("#56b4e9", 3.4), 2: ("#d55e00", 2.0), 4: ("#009e73", 1.0)}
    for workers, found in curves.items():
        colour, width = styles.get(workers, ("#cc79a7", 1.0))
        for index, curve in enumerate(found):
            epochs = range(1, len(curve.losses) + 1)
            name = label(workers) if index == 0 else None
            left.plot(epochs, curve.losses, color=colour, linewidth=width, label=name)
            if workers:
                right.plot(epochs, differences([curve], plain), color=colour, label=name)
    left.set(title="Validation loss, three seeds", xlabel="epoch", ylabel="cross-entropy", yscale="log")
    right.set(title="Difference from the run without Horovod", xlabel="epoch")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def parse(arguments: list[str]) -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(number) for number in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=numbers, default=[1, 2, 4])
    parser.add_argument("--seeds", type=numbers, default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", type=Path, default=ROOT / "docs", metavar="DIR")
    parser.add_argument("--worker", type=Path, default=None, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> int:
    options = parse(sys.argv[1:])
    if options.worker is not None:
        work(options)
        return 0
    if 1 not in options.workers:
        options.workers = [1, *options.workers]  # the single process is the reference
    curves: dict[int, list[Curve]] = {}
    for workers in options.workers:
        for curve in measure(workers, options):
            curves.setdefault(curve.workers, []).append(curve)
    finals = [curve.losses[-1] for curve in curves[0]]
    options.output.mkdir(parents=True, exist_ok=True)
    save_plot(options.output / "accuracy.svg", curves)
    page = _PAGE.format(
        batch=GLOBAL_BATCH,
        epochs=options.epochs,
        seeds=", ".join(map(str, options.seeds)),
        table=table(curves),
        spread=max(finals) - min(finals),
        count=len(finals),
    )
    (options.output / "accuracy.md").write_text(page)
    print(table(curves))
    print(f"{options.output / 'accuracy.md'} and {options.output / 'accuracy.svg'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
